"""Wan's causal VAE decoder, frame by latent frame."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, unpatchify


def decode_frames(vae: AutoencoderKLWan, z: torch.Tensor) -> Iterator[torch.Tensor]:
    """The same pixels as `vae.decode(z)`, a latent frame at a time.

    The loop is that of `AutoencoderKLWan._decode`. What the convolutions keep between frames is local here, so that
    decodings may be interleaved.

    Args:
        z: [1, C, T, H, W], in the VAE's own scale.

    Yields:
        [1, 3, t, h, w] in [-1, 1]: one pixel frame for the first latent frame, then `scale_factor_temporal` each.
    """
    cache: list[Any] = [None] * sum(isinstance(m, WanCausalConv3d) for m in vae.decoder.modules())
    z = vae.post_quant_conv(z)
    for i in range(z.shape[2]):
        frames = vae.decoder(z[:, :, i : i + 1], feat_cache=cache, feat_idx=[0], first_chunk=i == 0)
        yield unpatchify(frames, vae.config.patch_size or 1).clamp(-1.0, 1.0)


def decode_tiled(vae: AutoencoderKLWan, z: torch.Tensor) -> torch.Tensor:
    """[1, C, T, H, W] -> [1, 3, t, h, w], by diffusers' overlapping spatial tiles."""
    vae.enable_tiling()
    try:
        pixels: torch.Tensor = vae.decode(z, return_dict=False)[0]
    finally:
        vae.disable_tiling()
    return pixels
