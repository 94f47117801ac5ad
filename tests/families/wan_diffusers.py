"""What diffusers' own pipeline of a tiny Wan checkpoint makes of a case. Compared with diffusers 0.42.1."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import DiffusionPipeline
from PIL import Image
from tests.families.kit import Case, Model

from raydiance.models.wan_vae import decode_frames


@functools.cache
def pipeline_of(folder: Path) -> Any:
    """Loaded by diffusers, not by us."""
    pipe = DiffusionPipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def reference(model: Model, case: Case, output_type: str = "latent", pipe: Any = None) -> torch.Tensor:
    """Latents [C, T, H, W], references included, or frames [T, 3, H, W] in [0, 1]."""
    spec, pipe = case.spec, pipe or pipeline_of(model.folder)
    arguments = {k: v for k, v in spec.extra.items() if k in ("guidance_scale_2", "conditioning_scale")}
    result: torch.Tensor = pipe(
        prompt=spec.prompt,
        negative_prompt=spec.negative_prompt,
        height=spec.height,
        width=spec.width,
        num_frames=spec.num_frames,
        num_inference_steps=spec.num_inference_steps,
        guidance_scale=spec.guidance_scale,
        generator=torch.Generator("cpu").manual_seed(spec.seed),
        max_sequence_length=model.studio.encoder.config.max_sequence_length,
        output_type=output_type,
        **arguments,
        **(_vace_inputs(case) if "VACE" in type(pipe).__name__ else _frames(case)),
    ).frames[0]
    return result


def _frames(case: Case) -> dict[str, Any]:
    images = {} if case.inputs is None else case.inputs.images
    names = {"first_frame": "image", "last_frame": "last_image"}
    return {names[role]: found[0] for role, found in images.items()}


def _vace_inputs(case: Case) -> dict[str, Any]:
    """The video and mask that diffusers' documentation prepares, but for grey: there 128, which PIL can hold."""
    inputs, spec = case.inputs, case.spec
    given: dict[str, Any] = {}
    if references := inputs.images.get("reference"):
        given["reference_images"] = references
    if inputs.video is not None:
        given["video"] = [Image.fromarray(frame) for frame in inputs.video]
    if inputs.mask is not None:
        masks = inputs.mask if len(inputs.mask) > 1 else np.repeat(inputs.mask, spec.num_frames, axis=0)
        given["mask"] = [Image.fromarray(frame) for frame in masks]
    if first := inputs.images.get("first_frame"):
        video = np.full((1, spec.num_frames, spec.height, spec.width, 3), 127.5)
        mask = np.full((spec.num_frames, spec.height, spec.width), 255, np.uint8)
        video[0, 0], mask[0] = np.asarray(first[0]), 0
        if last := inputs.images.get("last_frame"):
            video[0, -1], mask[-1] = np.asarray(last[0]), 0
        given["video"] = (video / 255).astype(np.float32)
        given["mask"] = mask[None, ..., None].astype(np.float32) / 255
    return given


def pixels(model: Model, latents: torch.Tensor) -> torch.Tensor:
    """Ours: frames [T, 3, H, W] in [0, 1], before they are rounded to bytes."""
    decoder = model.studio.decoder
    mean, scale = decoder._latent_statistics(torch.float32)
    with torch.no_grad():
        chunks = list(decode_frames(decoder.pipeline.vae, latents[None] / scale + mean))
    return (torch.cat(chunks, dim=2)[0] * 0.5 + 0.5).transpose(0, 1)
