"""LTX's video decoder (`AutoencoderKLLTX2Video`): all frames at once, or in spatial tiles of all frames."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLLTX2Video

from raydiance.models.tiles import Run, Tiling, decode_in_tiles, wants_tiles
from raydiance.models.tokens import Forward, Tokens

MAX_UNTILED_PIXELS = 121 * 1920 * 1088
"""Videos of more pixels, of all frames, are decoded in tiles. In bfloat16, LTX-2.3's VAE takes 17 GiB for this one,
beside its weights and as `footprint` counts."""


def tiling(vae: AutoencoderKLLTX2Video) -> Tiling:
    """diffusers' own spatial one. Its temporal one is not used: frames would change where it cuts."""
    scale = vae.spatial_compression_ratio
    return Tiling(
        (vae.tile_sample_min_height // scale, vae.tile_sample_min_width // scale),
        (vae.tile_sample_stride_height // scale, vae.tile_sample_stride_width // scale),
        scale,
        fewest=2 if vae.config.decoder_spatial_padding_mode == "reflect" else 1,  # one has nothing to be reflected
    )


def decode_video(
    vae: AutoencoderKLLTX2Video, z: torch.Tensor, timestep: torch.Tensor | None, tokens: Tokens | None, run: Run
) -> torch.Tensor | None:
    """[B, C, T, H, W] in the VAE's own scale -> [B, 3, t, h, w]; None where the tiles are not wanted on this rank.

    Args:
        timestep: [B], where the decoder takes one.
    """
    tiles = tiling(vae)
    pixels = _num_frames(vae, z) * z.shape[-2] * z.shape[-1] * tiles.scale**2
    if wants_tiles(tokens, tiles, z, is_large=pixels > MAX_UNTILED_PIXELS):
        return decode_tiled(vae, z, timestep, run)
    whole: torch.Tensor = vae.decode(z, timestep, return_dict=False)[0]
    return whole


def decode_tiled(
    vae: AutoencoderKLLTX2Video, z: torch.Tensor, timestep: torch.Tensor | None, run: Run
) -> torch.Tensor | None:
    """The same pixels as diffusers' `tiled_decode`, each tile a forward of its own; as `decode_video` otherwise."""
    tiles, num_frames = tiling(vae), _num_frames(vae, z)

    def forward(tile: torch.Tensor) -> Forward:
        def call() -> torch.Tensor:
            pixels: torch.Tensor = vae.decoder(tile, timestep)
            return pixels

        rows, cols = (side * tiles.scale for side in tile.shape[-2:])
        shape = (len(tile), vae.config.out_channels, num_frames, rows, cols)
        return Forward(call, shape, tile.dtype, tile.device)

    return decode_in_tiles(z, tiles, forward, run)


def _num_frames(vae: AutoencoderKLLTX2Video, z: torch.Tensor) -> int:
    frames: int = (z.shape[2] - 1) * vae.temporal_compression_ratio + 1
    return frames
