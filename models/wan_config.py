"""What a Wan checkpoint's JSON files say, and the card that follows from them. No torch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from raydiance.models.card import Defaults, ModelCard
from raydiance.models.resolve import CheckpointError, read_json
from raydiance.models.spec import Task

OWN_FILE = "raydiance.json"
"""Optional, beside model_index.json: `max_sequence_length` (tokens) and `defaults` (of `card.Defaults`)."""
_DEFAULTS = Defaults(height=480, width=832, num_frames=81, fps=16, num_inference_steps=50, guidance_scale=5.0)
_DIFFUSERS_MULTIPLE = 16  # WanPipeline.check_inputs refuses other heights and widths


@dataclass(frozen=True, slots=True)
class WanConfig:
    """Args:
    expand_timesteps: one timestep a token, so that a given first frame is clean from the start (Wan 2.2 TI2V-5B).
    max_positions: positions that the rotary embedding has along each of time, height and width.
    """

    expand_timesteps: bool
    patch: tuple[int, int, int]
    latent_channels: int
    spatial_factor: int
    temporal_factor: int
    max_positions: int
    max_sequence_length: int
    defaults: Defaults

    @classmethod
    def read(cls, folder: Path) -> WanConfig:
        """Raises CheckpointError for a variant of Wan that is not served."""
        index = read_json(folder, "model_index.json")
        transformer = read_json(folder, "transformer/config.json")
        vae = read_json(folder, "vae/config.json")
        own = read_json(folder, OWN_FILE) if (folder / OWN_FILE).is_file() else {}
        config = cls(
            expand_timesteps=bool(index.get("expand_timesteps", False)),
            patch=_triple(folder / "transformer/config.json", transformer.get("patch_size", (1, 2, 2))),
            latent_channels=_count(folder / "vae/config.json", vae, "z_dim", 16),
            spatial_factor=_count(folder / "vae/config.json", vae, "scale_factor_spatial", 8),
            temporal_factor=_count(folder / "vae/config.json", vae, "scale_factor_temporal", 4),
            max_positions=_count(folder / "transformer/config.json", transformer, "rope_max_seq_len", 1024),
            max_sequence_length=_count(folder / OWN_FILE, own, "max_sequence_length", 512),
            defaults=_defaults(folder, own.get("defaults")),
        )
        _refuse(folder, config, index, transformer)
        return config

    def card(self, model_id: str) -> ModelCard:
        multiple = math.lcm(
            _DIFFUSERS_MULTIPLE, self.spatial_factor * self.patch[1], self.spatial_factor * self.patch[2]
        )
        tasks: tuple[Task, ...] = ("text-to-video", "text-to-image", "image-to-image", "video-to-video")
        longest = self.max_positions * self.spatial_factor * min(self.patch[1:])
        card = ModelCard(
            id=model_id,
            family="wan",
            tasks=(*tasks, "image-to-video") if self.expand_timesteps else tasks,
            defaults=self.defaults,
            size_multiple=multiple,
            frame_stride=self.temporal_factor,
            spatial_factor=self.spatial_factor,
            temporal_factor=self.temporal_factor,
            patch=self.patch,
            strength_tasks=("image-to-image", "video-to-video"),
        )
        return replace(
            card,
            max_side=min(card.max_side, longest) // multiple * multiple,
            max_frames=min(card.max_frames, (self.max_positions - 1) * self.temporal_factor + 1),
        )


def read_card(folder: Path, model_id: str) -> ModelCard:
    """The card of a Wan folder; raises CheckpointError."""
    return WanConfig.read(folder).card(model_id)


def _refuse(folder: Path, config: WanConfig, index: dict[str, Any], transformer: dict[str, Any]) -> None:
    channels = transformer.get("in_channels", 16)
    if index.get("boundary_ratio") is not None or (index.get("transformer_2") or [None])[0] is not None:
        raise CheckpointError(f"{folder} has two experts (transformer_2, boundary_ratio); only one is supported")
    if channels != config.latent_channels or transformer.get("image_dim") is not None:
        raise CheckpointError(
            f"{folder}: the transformer takes {channels} channels and the VAE has {config.latent_channels}; images "
            "given as extra channels or through an image encoder (Wan 2.1 I2V) are not supported"
        )
    if index.get("_class_name") == "WanImageToVideoPipeline" and not config.expand_timesteps:
        raise CheckpointError(f"{folder} is a WanImageToVideoPipeline without expand_timesteps, which is not supported")
    if config.patch[0] != 1:
        raise CheckpointError(f"{folder} has patch_size {config.patch}; its first number must be 1")
    if config.expand_timesteps and config.patch[1:] != (2, 2):
        raise CheckpointError(
            f"{folder} has expand_timesteps and patch_size {config.patch}; diffusers counts tokens by patches of 2x2"
        )


def _count(file: Path, values: dict[str, Any], name: str, default: int) -> int:
    value = values.get(name, default)
    if type(value) is not int or value < 1:
        raise CheckpointError(f"{file}: {name}={value!r} must be a positive integer")
    return value


def _triple(file: Path, values: Any) -> tuple[int, int, int]:
    if not isinstance(values, list | tuple) or len(values) != 3 or any(type(v) is not int or v < 1 for v in values):
        raise CheckpointError(f"{file}: patch_size={values!r} must be three positive integers")
    time, height, width = values
    return time, height, width


def _defaults(folder: Path, values: dict[str, Any] | None) -> Defaults:
    if values is None:
        return _DEFAULTS
    try:
        defaults = Defaults(**values)
        if not all(type(v) in (int, float) for v in asdict(defaults).values()):
            raise TypeError(f"all of {values} must be numbers")
        return defaults
    except TypeError as error:
        raise CheckpointError(f"{folder / OWN_FILE}: defaults: {error}") from error
