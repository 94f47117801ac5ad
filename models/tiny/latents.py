"""Encode the training clips once: normalized latents and the specs they show, cached as safetensors."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from safetensors.torch import load_file, save_file
from torch import Tensor

from raydiance.models.tiny import world
from raydiance.models.tiny.vae_train import to_tensor

logger = logging.getLogger(__name__)

BATCH = 60


@torch.no_grad()
def encode(vae: AutoencoderKLWan, count: int, seed: int) -> tuple[Tensor, list[world.Spec]]:
    """Render and encode `count` training clips. Sets the latents' mean and deviation in the VAE's configuration.

    Returns:
        latents [count, C, t, h, w] normalized per channel, and what each clip shows.
    """
    rng = np.random.default_rng(seed)
    specs = world.sample_specs(rng, count, world.training_specs())
    batches = []
    for start in range(0, count, BATCH):
        clips = to_tensor([world.render(spec, rng) for spec in specs[start : start + BATCH]])
        batches.append(vae.encode(clips).latent_dist.mode())
    latents = torch.cat(batches)
    dims = (0, 2, 3, 4)
    mean, std = latents.mean(dims), latents.std(dims)
    vae.register_to_config(
        latents_mean=[round(float(v), 5) for v in mean], latents_std=[round(float(v), 5) for v in std]
    )
    logger.info("encoded %d clips, latents' std %s", count, [round(float(v), 2) for v in std])
    return (latents - mean.view(1, -1, 1, 1, 1)) / std.view(1, -1, 1, 1, 1), specs


def save(path: Path, latents: Tensor, specs: list[world.Spec]) -> None:
    index = {spec: i for i, spec in enumerate(world.all_specs())}
    save_file({"latents": latents.half().contiguous(), "specs": torch.tensor([index[spec] for spec in specs])}, path)


def load(path: Path) -> tuple[Tensor, list[world.Spec]]:
    tensors = load_file(path)
    specs = world.all_specs()
    return tensors["latents"].float(), [specs[i] for i in tensors["specs"].tolist()]
