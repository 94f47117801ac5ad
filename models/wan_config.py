"""What a Wan checkpoint's JSON files say, and the card that follows from them. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from raydiance.models.card import Defaults, ModelCard, Parameter
from raydiance.models.inputs import Accepts
from raydiance.models.resolve import CheckpointError, read_json
from raydiance.models.spec import Task

if TYPE_CHECKING:
    from raydiance.models.family import Stage

OWN_FILE = "raydiance.json"
"""Optional, beside model_index.json: `max_sequence_length` (tokens) and `defaults` (of `card.Defaults`)."""
MAX_REFERENCES = 8
_DIFFUSERS_MULTIPLE = 16  # WanPipeline.check_inputs refuses other heights and widths

Expert = Literal["transformer", "transformer_2"]
HIGH_NOISE: Final = "transformer"
LOW_NOISE: Final = "transformer_2"
EXPERTS: Final = (HIGH_NOISE, LOW_NOISE)
Kind = Literal["text", "image", "vace"]
"""`image`: given frames are extra channels (I2V-A14B). `vace`: a branch of its own for video, mask and references."""
_KINDS: dict[str, Kind] = {"WanImageToVideoPipeline": "image", "WanVACEPipeline": "vace"}
_AS_THE_OTHER = ("in_channels", "patch_size", "rope_max_seq_len", "image_dim", "vace_layers", "vace_in_channels")


@dataclass(frozen=True, slots=True)
class WanConfig:
    """Args:
    experts: components that denoise: one, or one for high and one for low noise.
    boundary_ratio: with two experts, the share of the training timesteps from which the first one is used.
    expand_timesteps: one timestep a token, so that a given first frame is clean from the start (Wan 2.2 TI2V-5B).
    max_positions: positions that the rotary embedding has along each of time, height and width.
    own_defaults: the checkpoint's, from `raydiance.json`.
    """

    kind: Kind
    experts: tuple[Expert, ...]
    boundary_ratio: float | None
    expand_timesteps: bool
    patch: tuple[int, int, int]
    latent_channels: int
    spatial_factor: int
    temporal_factor: int
    max_positions: int
    max_sequence_length: int
    own_defaults: Defaults | None

    @classmethod
    def read(cls, folder: Path) -> WanConfig:
        """Raises CheckpointError for a variant of Wan that is not served."""
        index = read_json(folder, "model_index.json")
        experts = _experts(folder, index)
        file = f"{experts[0]}/config.json"
        transformer = read_json(folder, file)
        vae = read_json(folder, "vae/config.json")
        own = read_json(folder, OWN_FILE) if (folder / OWN_FILE).is_file() else {}
        expands = bool(index.get("expand_timesteps", False))
        config = cls(
            kind="text" if expands else _KINDS.get(str(index.get("_class_name")), "text"),
            experts=experts,
            boundary_ratio=index.get("boundary_ratio") if len(experts) == 2 else None,
            expand_timesteps=expands,
            patch=_triple(folder / file, transformer.get("patch_size", (1, 2, 2))),
            latent_channels=_count(folder / "vae/config.json", vae, "z_dim", 16),
            spatial_factor=_count(folder / "vae/config.json", vae, "scale_factor_spatial", 8),
            temporal_factor=_count(folder / "vae/config.json", vae, "scale_factor_temporal", 4),
            max_positions=_count(folder / file, transformer, "rope_max_seq_len", 1024),
            max_sequence_length=_count(folder / OWN_FILE, own, "max_sequence_length", 512),
            own_defaults=_defaults(folder, own.get("defaults")),
        )
        _refuse(folder, config, transformer, vae)
        return config

    @property
    def tasks(self) -> tuple[Task, ...]:
        if self.kind == "vace":
            return "text-to-video", "text-to-image", "image-to-video", "reference-to-video", "video-to-video"
        if self.kind == "image":
            return ("image-to-video",)
        from_text: tuple[Task, ...] = ("text-to-video", "text-to-image")
        # diffusers' video-to-video, which starts from what is given, knows no second expert
        from_given: tuple[Task, ...] = ("image-to-image", "video-to-video") if len(self.experts) == 1 else ()
        return (*from_text, *from_given, *(("image-to-video",) if self.expand_timesteps else ()))

    @property
    def inputs(self) -> Mapping[Task, tuple[Accepts, ...]]:
        """What tasks take, where it is not what they take elsewhere.

        With VACE every task takes something, if only optionally: it encodes an empty video where none is given.
        """
        frames = Accepts("first_frame"), Accepts("last_frame", required=False)
        if self.kind == "image":
            return {"image-to-video": frames}
        if self.kind == "text":
            return {}
        references = Accepts("reference", required=False, max_count=MAX_REFERENCES)
        return {
            "text-to-video": (references,),
            "text-to-image": (references,),
            "image-to-video": frames,
            "reference-to-video": (replace(references, required=True),),
            "video-to-video": (Accepts("video"), Accepts("mask", required=False), references),
        }

    @property
    def defaults(self) -> Defaults:
        """The checkpoint's own, or what is recommended for the published one of these numbers."""
        if self.own_defaults is not None:
            return self.own_defaults
        defaults = Defaults(height=480, width=832, num_frames=81, fps=16, num_inference_steps=50, guidance_scale=5.0)
        if self.kind == "vace":
            return replace(defaults, num_inference_steps=30)
        if len(self.experts) == 2:
            guidance = 3.5 if self.kind == "image" else 4.0
            return replace(defaults, height=720, width=1280, num_inference_steps=40, guidance_scale=guidance)
        if self.expand_timesteps and self.latent_channels == 48:  # TI2V-5B
            return replace(defaults, height=704, width=1280, num_frames=121, fps=24)
        return defaults

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        found = []
        if len(self.experts) == 2:
            recommended = 3.0 if self.kind == "text" and self.own_defaults is None else None  # T2V-A14B: 4 and 3
            found.append(Parameter("guidance_scale_2", 0.0, 100.0, recommended))
        if self.kind == "vace":
            found.append(Parameter("conditioning_scale", 0.0, 10.0, 1.0))
        return tuple(found)

    def card(self, model_id: str) -> ModelCard:
        multiple = math.lcm(
            _DIFFUSERS_MULTIPLE, self.spatial_factor * self.patch[1], self.spatial_factor * self.patch[2]
        )
        longest = self.max_positions * self.spatial_factor * min(self.patch[1:])
        card = ModelCard(
            id=model_id,
            family="wan",
            tasks=self.tasks,
            defaults=self.defaults,
            size_multiple=multiple,
            frame_stride=self.temporal_factor,
            spatial_factor=self.spatial_factor,
            temporal_factor=self.temporal_factor,
            patch=self.patch,
            inputs=self.inputs,
            parameters=self.parameters,
            strength_tasks=("image-to-image", "video-to-video") if "image-to-image" in self.tasks else (),
        )
        positions = self.max_positions - (MAX_REFERENCES if self.kind == "vace" else 0)
        return replace(
            card,
            max_side=min(card.max_side, longest) // multiple * multiple,
            max_frames=min(card.max_frames, (positions - 1) * self.temporal_factor + 1),
        )


def read_card(folder: Path, model_id: str) -> ModelCard:
    """The card of a Wan folder; raises CheckpointError."""
    return WanConfig.read(folder).card(model_id)


def read_components(folder: Path) -> Mapping[Stage, tuple[str, ...]]:
    """By stage, what it opens of this folder; raises CheckpointError."""
    experts = _experts(folder, read_json(folder, "model_index.json"))
    return {"encode": ("tokenizer", "text_encoder"), "denoise": (*experts, "scheduler"), "decode": ("vae",)}


def _experts(folder: Path, index: dict[str, Any]) -> tuple[Expert, ...]:
    """Those that denoise. One of both may be all there is where the boundary leaves nothing to the other."""
    ratio = index.get("boundary_ratio")
    if ratio is not None and (type(ratio) not in (int, float) or not ratio >= 0):
        raise CheckpointError(f"{folder}: boundary_ratio={ratio!r} must be a number from 0 on")
    high, low = ((index.get(name) or [None])[0] is not None for name in EXPERTS)
    if high and low and ratio is not None:
        return EXPERTS
    if high and not low and not ratio:
        return (HIGH_NOISE,)
    if low and not high and ratio is not None and ratio >= 1:
        return (LOW_NOISE,)
    there = " and ".join(name for name, is_there in zip(EXPERTS, (high, low), strict=True) if is_there) or "neither"
    raise CheckpointError(
        f"{folder} has boundary_ratio={ratio} and of its two experts (transformer, transformer_2) {there}; both need "
        "a boundary_ratio, transformer alone none or 0, transformer_2 alone 1"
    )


def _check_alike(folder: Path) -> None:
    one, other = (read_json(folder, f"{name}/config.json") for name in EXPERTS)
    for option in _AS_THE_OTHER:
        if one.get(option) != other.get(option):
            raise CheckpointError(
                f"{folder}: {option} is {one.get(option)} in transformer and {other.get(option)} in transformer_2"
            )


def _refuse(folder: Path, config: WanConfig, transformer: dict[str, Any], vae: dict[str, Any]) -> None:
    if len(config.experts) == 2:
        _check_alike(folder)
    channels, latent = transformer.get("in_channels", 16), config.latent_channels
    wanted = 2 * latent + config.temporal_factor if config.kind == "image" else latent
    if transformer.get("image_dim") is not None:
        raise CheckpointError(f"{folder}: images given through an image encoder (Wan 2.1 I2V) are not supported")
    if config.kind == "image" and channels != wanted:
        raise CheckpointError(
            f"{folder} is a WanImageToVideoPipeline without expand_timesteps, whose transformer takes {channels} "
            f"channels; the VAE's {latent} for the latents, as many for the frames given and {config.temporal_factor} "
            f"for their mask are {wanted}"
        )
    if channels != wanted:
        raise CheckpointError(f"{folder}: the transformer takes {channels} channels and the VAE has {latent}")
    if config.patch[0] != 1:
        raise CheckpointError(f"{folder} has patch_size {config.patch}; its first number must be 1")
    if config.expand_timesteps and config.patch[1:] != (2, 2):
        raise CheckpointError(
            f"{folder} has expand_timesteps and patch_size {config.patch}; diffusers counts tokens by patches of 2x2"
        )
    if config.kind == "vace":
        _refuse_vace(folder, config, transformer, vae)


def _refuse_vace(folder: Path, config: WanConfig, transformer: dict[str, Any], vae: dict[str, Any]) -> None:
    if vae.get("patch_size") is not None:
        raise CheckpointError(f"{folder}: a VAE with patch_size={vae['patch_size']} does not go with VACE in diffusers")
    channels, wanted = transformer.get("vace_in_channels", 96), 2 * config.latent_channels + config.spatial_factor**2
    if channels != wanted:
        raise CheckpointError(
            f"{folder}: vace_in_channels={channels}; twice the VAE's {config.latent_channels} channels and a mask of "
            f"{config.spatial_factor}x{config.spatial_factor} are {wanted}"
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


def _defaults(folder: Path, values: dict[str, Any] | None) -> Defaults | None:
    if values is None:
        return None
    try:
        defaults = Defaults(**values)
        if not all(type(v) in (int, float) for v in asdict(defaults).values()):
            raise TypeError(f"all of {values} must be numbers")
        return defaults
    except TypeError as error:
        raise CheckpointError(f"{folder / OWN_FILE}: defaults: {error}") from error
