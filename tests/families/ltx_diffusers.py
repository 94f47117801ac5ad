"""LTX requests as diffusers' own pipelines do them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from diffusers import LTX2ImageToVideoPipeline, LTX2Pipeline
from tests.families.kit import Case, Model
from tests.families.ltx import PLAIN


def pipeline_of(model: Model, case: Case) -> Any:
    """Loaded by diffusers, not by us; once a model and task."""
    kind = LTX2Pipeline if case.inputs is None else LTX2ImageToVideoPipeline
    known = vars(model).setdefault("_pipelines", {})
    if kind not in known:
        known[kind] = kind.from_pretrained(model.folder)
        known[kind].set_progress_bar_config(disable=True)
    return known[kind]


def run(model: Model, case: Case, output_type: str) -> tuple[Any, torch.Tensor]:
    """Video (latents [1, C, T, H, W] in the VAE's scale, or frames in [0, 1]) and sound (latents, or a waveform)."""
    spec, sigmas = case.spec, model.studio.denoiser.config.sigmas
    image = {} if case.inputs is None else {"image": case.inputs.image("first_frame")}
    scales = {**PLAIN, **spec.extra}
    made: tuple[Any, torch.Tensor] = pipeline_of(model, case)(
        prompt=spec.prompt,
        negative_prompt=spec.negative_prompt,
        height=spec.height,
        width=spec.width,
        num_frames=spec.num_frames,
        frame_rate=float(spec.fps),
        num_inference_steps=spec.num_inference_steps,
        sigmas=list(sigmas) or None,
        guidance_scale=spec.guidance_scale,
        spatio_temporal_guidance_blocks=list(model.studio.denoiser.config.stg_blocks),
        generator=torch.Generator("cpu").manual_seed(spec.seed),
        max_sequence_length=model.studio.encoder.config.max_sequence_length,
        output_type=output_type,
        return_dict=False,
        **image,
        **scales,
    )
    return made


def latents_as_theirs(model: Model, case: Case, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Ours, taken apart and scaled as diffusers hands latents out."""
    family, spec = model.studio.decoder, case.spec
    pipe, vae, audio_vae = family.pipeline, family.pipeline.vae, family.pipeline.audio_vae
    video, sound = family._split(latents, spec)
    _, frames, rows, cols = family.config.latent_shape(spec)
    _, length, bins = family.config.audio_shape(spec)
    z = pipe._unpack_latents(video[None], frames, rows, cols)
    z = pipe._denormalize_latents(z, vae.latents_mean, vae.latents_std, vae.config.scaling_factor)
    a = pipe._denormalize_audio_latents(sound[None], audio_vae.latents_mean, audio_vae.latents_std)
    return z, pipe._unpack_audio_latents(a, length, num_mel_bins=bins)


def as_bytes(frames: Any) -> np.ndarray:
    return (np.asarray(frames)[0] * 255).round().astype(np.uint8)
