"""All stages of a model in one process, as a configuration has them loaded by theirs; what generating there costs."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from raydiance.kernels import attention
from raydiance.models import registry, resolve
from raydiance.models.family import Stage
from raydiance.models.options import LoadOptions
from raydiance.serve.config import Config, ModelConfig
from raydiance.serve.engine.cost_design import design
from raydiance.serve.engine.cost_fit import fit
from raydiance.serve.engine.cost_measure import Studio, Write, measure
from raydiance.serve.engine.cost_profile import Profile, identity_of, machine
from raydiance.serve.engine.engine import Engine
from raydiance.serve.engine.fleet import Alone

ROUNDS, QUICK_ROUNDS = 3, 1


def measured_here(
    config: Config,
    model: ModelConfig,
    write: Write,
    *,
    quick: bool,
    longest_s: float,
    progress: Callable[[float, str], None],
) -> Profile:
    """In this process; its environment should be `memory.environment`. See `calibrate`."""
    folder = resolve.resolve(model.path, model.revision)
    studio = open_studio(folder, config, model, write)
    cases = design(studio.card, quick=quick)
    rounds = QUICK_ROUNDS if quick else ROUNDS
    samples = measure(studio, cases, rounds=rounds, longest_s=longest_s, progress=progress)
    return Profile(fit(samples), identity(folder, config, model), machine(), tuple(samples))


def open_studio(folder: Path, config: Config, model: ModelConfig, write: Write) -> Studio:
    """Raises CheckpointError. Sets torch's number of threads."""
    torch.set_num_threads(num_threads(config))
    stages: tuple[Stage, ...] = ("encode", "denoise", "decode")
    encoder, denoiser, decoder = (
        registry.load(folder, stage, model.id, load_options(config, model, stage)) for stage in stages
    )
    if denoiser.device.type != "cpu" or config.denoiser.attention != "auto":
        denoiser.set_attention(partial(attention.attend, backend=config.denoiser.attention))
    return Studio(encoder, Alone(Engine(denoiser)), decoder, write)


def identity(folder: Path, config: Config, model: ModelConfig) -> dict[str, str]:
    """What a profile of this model holds for. Raises CheckpointError: it is no checkpoint, or a guest."""
    return dict(identity_of(folder, partial(load_options, config, model), num_threads(config)))


def num_threads(config: Config) -> int:
    return config.denoiser.num_threads or os.cpu_count() or 1


def load_options(config: Config, model: ModelConfig, stage: Stage) -> LoadOptions:
    """On the device that the stage's section asks for."""
    num_gpus = {"encode": config.text_encoder.num_gpus, "denoise": config.denoiser.num_gpus}
    return model.load_options(stage, "cuda" if num_gpus.get(stage, config.vae_decoder.num_gpus) > 0 else "cpu")
