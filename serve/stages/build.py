"""What a rank computes with: a family on its device, with the attention that is configured."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import torch

from raydiance.kernels import attention
from raydiance.models import registry
from raydiance.models.family import Attention
from raydiance.serve.config import DenoiserConfig, ModelConfig
from raydiance.serve.engine.engine import Engine
from raydiance.serve.engine.fleet import Alone
from raydiance.serve.errors import ConfigError


def alone(folder: Path, model: ModelConfig, config: DenoiserConfig, device: str) -> Alone:
    """One rank, in this process."""
    torch.set_num_threads(config.num_threads or os.cpu_count() or 1)
    attend = configured_attention(model, config, device)
    family = registry.load(folder, "denoise", model.id, model.load_options("denoise", device))
    if attend is not None:
        family.set_attention(attend)
    return Alone(Engine(family))


def configured_attention(model: ModelConfig, config: DenoiserConfig, device: str) -> Attention | None:
    """For `Family.set_attention`; None where diffusers' own stays. Raises ConfigError as `check_attention` does."""
    name = check_attention(model, config, device)
    if config.attention == "auto" and name == "sdpa" and torch.device(device).type == "cpu":
        return None
    return partial(attention.attend, backend=config.attention)


def check_attention(model: ModelConfig, config: DenoiserConfig, device: str) -> str:
    """The name of the backend. The size of a head is checked when it is called.

    Raises:
        ConfigError: what is configured is missing, or cannot run on this device or in this dtype.
    """
    try:
        return attention.choose(config.attention, torch.device(device), getattr(torch, model.dtype), None, False)
    except attention.AttentionUnavailable as e:
        raise ConfigError(f"denoiser.attention={config.attention} for model '{model.id}': {e}") from e
