"""Tiny VAEs with random weights, in diffusers' classes, and how each is decoded in tiles: of 4 latents, 3 apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import AutoencoderKL, AutoencoderKLLTX2Video, AutoencoderKLWan

from raydiance.models import image_vae, ltx_vae, wan_vae
from raydiance.models.tiles import Run, Tiling
from raydiance.models.tokens import run_in_turn

NAMES = ("image", "image-convolved", "wan", "wan-patches", "ltx", "ltx-old")


@dataclass(frozen=True)
class TinyVAE:
    module: Any
    frames: tuple[int, ...]  # latents along the axes before rows and columns
    tiling: Tiling
    decode: Callable[[torch.Tensor, Run], torch.Tensor | None]
    peer: Callable[[torch.Tensor], torch.Tensor]  # diffusers' own, with tiling on

    def latents(self, rows: int, cols: int) -> torch.Tensor:
        make = torch.Generator().manual_seed(100 * rows + cols)
        shape = (1, self.module.config.get("z_dim", 0) or self.module.config.latent_channels, *self.frames, rows, cols)
        return torch.randn(shape, generator=make).to(next(self.module.parameters()).dtype)

    @torch.no_grad()
    def tiled(self, z: torch.Tensor, run: Run = run_in_turn) -> torch.Tensor | None:
        return self.decode(z, run)

    @torch.no_grad()
    def diffusers(self, z: torch.Tensor) -> torch.Tensor:
        self.module.enable_tiling()
        try:
            return self.peer(z)
        finally:
            self.module.disable_tiling()


def make(name: str, dtype: torch.dtype = torch.float32) -> TinyVAE:
    """The same weights whenever it is called."""
    kind, _, variant = name.partition("-")
    torch.manual_seed(0)
    made: TinyVAE = {"image": _image, "wan": _wan, "ltx": _ltx}[kind](bool(variant), dtype)
    return made


def _image(convolved: bool, dtype: torch.dtype) -> TinyVAE:
    vae = AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2,
        block_out_channels=[4, 8],
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=2,
        sample_size=8,
        use_post_quant_conv=convolved,
    ).to(dtype)
    return TinyVAE(
        vae,
        (),
        image_vae.tiling(vae),
        lambda z, run: image_vae.decode_tiled(vae, z, run),
        lambda z: vae.decode(z, return_dict=False)[0],
    )


def _wan(patches: bool, dtype: torch.dtype) -> TinyVAE:
    factor = 16 if patches else 8
    vae = AutoencoderKLWan(
        base_dim=4,
        z_dim=4,
        dim_mult=[1, 1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        scale_factor_spatial=factor,
        **({"patch_size": 2, "in_channels": 12, "out_channels": 12} if patches else {}),
    ).to(dtype)
    vae.tile_sample_min_height = vae.tile_sample_min_width = 4 * factor
    vae.tile_sample_stride_height = vae.tile_sample_stride_width = 3 * factor
    return TinyVAE(
        vae,
        (2,),
        wan_vae.tiling(vae),
        lambda z, run: wan_vae.decode_tiled(vae, z, run),
        lambda z: vae.decode(z, return_dict=False)[0],
    )


def _ltx(old: bool, dtype: torch.dtype) -> TinyVAE:
    vae = AutoencoderKLLTX2Video(
        latent_channels=4,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1),
        spatio_temporal_scaling=(True, True, True, True),
        decoder_spatio_temporal_scaling=(True, True, True),
        decoder_inject_noise=(False, False, False, False),
        downsample_type=("spatial", "temporal", "spatiotemporal", "spatiotemporal"),
        upsample_residual=(False, False, False),
        upsample_factor=(1, 1, 1),
        timestep_conditioning=old,
        decoder_spatial_padding_mode="reflect" if old else "zeros",
        patch_size=4,
        spatial_compression_ratio=32,
        temporal_compression_ratio=8,
    ).to(dtype)
    vae.tile_sample_min_height = vae.tile_sample_min_width = 4 * 32
    vae.tile_sample_stride_height = vae.tile_sample_stride_width = 3 * 32
    timestep = torch.zeros(1, dtype=dtype) if old else None
    return TinyVAE(
        vae,
        (2,),
        ltx_vae.tiling(vae),
        lambda z, run: ltx_vae.decode_tiled(vae, z, timestep, run),
        lambda z: vae.decode(z, timestep, return_dict=False)[0],
    )
