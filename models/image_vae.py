"""The decoder of image VAEs (`AutoencoderKL`): a picture at once, or in tiles."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKL

from raydiance.models.tiles import Run, Tiling, decode_in_tiles, wants_tiles
from raydiance.models.tokens import Forward, Tokens

MAX_UNTILED_PIXELS = 2048 * 2048
"""Larger pictures are decoded in tiles. In bfloat16, FLUX's VAE takes 6 GiB for this one and 24 for 4096 x 4096, beside
its weights and as `footprint` counts."""


def tiling(vae: AutoencoderKL) -> Tiling:
    """diffusers' own, of the configuration's `sample_size`. Where that is one latent, diffusers' own never gets on."""
    size = vae.tile_latent_min_size
    stride = max(1, int(size * (1 - vae.tile_overlap_factor)))
    return Tiling((size, size), (stride, stride), 2 ** (len(vae.config.block_out_channels) - 1))


def decode_image(vae: AutoencoderKL, z: torch.Tensor, tokens: Tokens | None, run: Run) -> torch.Tensor | None:
    """[B, C, H, W] in the VAE's own scale -> [B, 3, h, w]; None where the tiles are not wanted on this rank."""
    tiles = tiling(vae)
    pixels = z.shape[-2] * z.shape[-1] * tiles.scale**2
    if wants_tiles(tokens, tiles, z, is_large=pixels > MAX_UNTILED_PIXELS):
        return decode_tiled(vae, z, run)
    whole: torch.Tensor = vae.decode(z, return_dict=False)[0]
    return whole


def decode_tiled(vae: AutoencoderKL, z: torch.Tensor, run: Run) -> torch.Tensor | None:
    """The same pixels as diffusers' `tiled_decode`, each tile a forward of its own; as `decode_image` otherwise."""
    tiles = tiling(vae)

    def forward(tile: torch.Tensor) -> Forward:
        def call() -> torch.Tensor:
            convolved = tile if vae.post_quant_conv is None else vae.post_quant_conv(tile)
            pixels: torch.Tensor = vae.decoder(convolved)
            return pixels

        rows, cols = (side * tiles.scale for side in tile.shape[-2:])
        return Forward(call, (len(tile), vae.config.out_channels, rows, cols), tile.dtype, tile.device)

    return decode_in_tiles(z, tiles, forward, run)
