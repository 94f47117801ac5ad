"""The cost profile that a model is configured with."""

from __future__ import annotations

from pathlib import Path

from raydiance.models import resolve
from raydiance.models.family import Stage
from raydiance.models.options import LoadOptions
from raydiance.serve.config import Config, ModelConfig
from raydiance.serve.engine.cost_model import CostModel
from raydiance.serve.engine.cost_profile import ProfileError, identity_of, load_profile
from raydiance.serve.errors import ConfigError


def profile_of(config: Config, model: ModelConfig) -> CostModel | None:
    """Of `models[].cost_profile`; raises ConfigError where it is of something else."""
    if model.cost_profile is None:
        return None
    folder = resolve.resolve(model.path, model.revision)
    try:
        devices = {
            "encode": config.text_encoder.num_gpus,
            "denoise": config.denoiser.num_gpus,
            "decode": config.vae_decoder.num_gpus,
        }

        def options(stage: Stage) -> LoadOptions:
            return model.load_options(stage, "cuda" if devices[stage] else "cpu")

        identity = identity_of(folder, options, config.denoiser.num_threads)
        return load_profile(Path(model.cost_profile), identity).model
    except (ProfileError, resolve.CheckpointError) as e:
        raise ConfigError(f"models[].cost_profile: {e}") from e
