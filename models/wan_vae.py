"""Wan's causal VAE decoder: frame by latent frame, or in spatial tiles of all frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, unpatchify

from raydiance.models.tiles import Run, Tiling, decode_in_tiles, wants_tiles
from raydiance.models.tokens import Forward, Tokens


def decode_chunks(
    vae: AutoencoderKLWan, z: torch.Tensor, tokens: Tokens | None, run: Run, *, is_large: bool
) -> Iterator[torch.Tensor]:
    """What `decode_frames` yields; where frames are tiled all of them as one, none where this rank is to have none."""
    if wants_tiles(tokens, tiling(vae), z, is_large):
        tiled = decode_tiled(vae, z, run)
        yield from () if tiled is None else (tiled,)
    else:
        yield from decode_frames(vae, z)


def decode_frames(vae: AutoencoderKLWan, z: torch.Tensor) -> Iterator[torch.Tensor]:
    """The same pixels as `vae.decode(z)`, a latent frame at a time.

    Args:
        z: [1, C, T, H, W], in the VAE's own scale.

    Yields:
        [1, 3, t, h, w] in [-1, 1]: one pixel frame for the first latent frame, then `scale_factor_temporal` each.
    """
    for patches in _decode_patches(vae, z):
        yield _pixels(vae, patches)


def decode_tiled(vae: AutoencoderKLWan, z: torch.Tensor, run: Run) -> torch.Tensor | None:
    """[1, C, T, H, W] -> [1, 3, t, h, w], the same pixels as diffusers' `tiled_decode`, each tile a forward of its own.

    None where the tiles are not wanted on this rank.
    """
    tiles = tiling(vae)
    num_frames = (z.shape[2] - 1) * vae.config.scale_factor_temporal + 1

    def forward(tile: torch.Tensor) -> Forward:
        rows, cols = (side * tiles.scale for side in tile.shape[-2:])
        shape = (len(tile), vae.config.out_channels, num_frames, rows, cols)
        return Forward(lambda: torch.cat(list(_decode_patches(vae, tile)), dim=2), shape, tile.dtype, tile.device)

    patches = decode_in_tiles(z, tiles, forward, run)
    return None if patches is None else _pixels(vae, patches)


def tiling(vae: AutoencoderKLWan) -> Tiling:
    """diffusers' own. Tiles fade into each other before pixels are taken out of their patches: these are the unit."""
    factor = vae.spatial_compression_ratio
    return Tiling(
        (vae.tile_sample_min_height // factor, vae.tile_sample_min_width // factor),
        (vae.tile_sample_stride_height // factor, vae.tile_sample_stride_width // factor),
        factor // (vae.config.patch_size or 1),
    )


def _decode_patches(vae: AutoencoderKLWan, z: torch.Tensor) -> Iterator[torch.Tensor]:
    """The loop of `AutoencoderKLWan._decode`. What the convolutions keep between frames is local here, so that
    decodings may be interleaved."""
    cache: list[Any] = [None] * sum(isinstance(m, WanCausalConv3d) for m in vae.decoder.modules())
    z = vae.post_quant_conv(z)
    for i in range(z.shape[2]):
        yield vae.decoder(z[:, :, i : i + 1], feat_cache=cache, feat_idx=[0], first_chunk=i == 0)


def _pixels(vae: AutoencoderKLWan, patches: torch.Tensor) -> torch.Tensor:
    pixels: torch.Tensor = unpatchify(patches, vae.config.patch_size or 1).clamp(-1.0, 1.0)
    return pixels
