"""What a Wan checkpoint's JSON files say: which Wan it is, by its numbers. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from raydiance.models.card import Defaults
from raydiance.models.own import OWN_FILE, own_defaults, read_own
from raydiance.models.resolve import CheckpointError, read_json

if TYPE_CHECKING:
    from raydiance.models.family import Stage

TEXT_TOKENS = 512
"""Where an image encoder's tokens come before the prompt's, diffusers tells them apart by this number."""
_IMAGE_ENCODERS = ("CLIPVisionModel", "CLIPVisionModelWithProjection")

Expert = Literal["transformer", "transformer_2"]
HIGH_NOISE: Final = "transformer"
LOW_NOISE: Final = "transformer_2"
EXPERTS: Final = (HIGH_NOISE, LOW_NOISE)
Kind = Literal["text", "image", "vace"]
"""`image`: given frames are extra channels (I2V). `vace`: a branch of its own for video, mask and references."""
_KINDS: dict[str, Kind] = {"WanImageToVideoPipeline": "image", "WanVACEPipeline": "vace"}
_AS_THE_OTHER = (
    "in_channels",
    "patch_size",
    "rope_max_seq_len",
    "image_dim",
    "pos_embed_seq_len",
    "vace_layers",
    "vace_in_channels",
)


@dataclass(frozen=True, slots=True)
class WanConfig:
    """Args:
    experts: components that denoise: one, or one for high and one for low noise.
    boundary_ratio: with two experts, the share of the training timesteps from which the first one is used.
    expand_timesteps: one timestep a token, so that a given first frame is clean from the start (Wan 2.2 TI2V-5B).
    embedded_frames: how many of the frames given an image encoder sees too: none, the first one (Wan 2.1 I2V), or the
        first one and the last one (Wan 2.1 FLF2V).
    num_heads: of self-attention.
    max_positions: positions that the rotary embedding has along each of time, height and width.
    own_defaults: the checkpoint's, from `raydiance.json`.
    """

    kind: Kind
    experts: tuple[Expert, ...]
    boundary_ratio: float | None
    expand_timesteps: bool
    embedded_frames: int
    patch: tuple[int, int, int]
    latent_channels: int
    spatial_factor: int
    temporal_factor: int
    num_heads: int
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
        own = read_own(folder)
        expands = bool(index.get("expand_timesteps", False))
        config = cls(
            kind="text" if expands else _KINDS.get(str(index.get("_class_name")), "text"),
            experts=experts,
            boundary_ratio=index.get("boundary_ratio") if len(experts) == 2 else None,
            expand_timesteps=expands,
            embedded_frames=_embedded_frames(transformer),
            patch=_triple(folder / file, transformer.get("patch_size", (1, 2, 2))),
            latent_channels=_count(folder / "vae/config.json", vae, "z_dim", 16),
            spatial_factor=_count(folder / "vae/config.json", vae, "scale_factor_spatial", 8),
            temporal_factor=_count(folder / "vae/config.json", vae, "scale_factor_temporal", 4),
            num_heads=_count(folder / file, transformer, "num_attention_heads", 40),
            max_positions=_count(folder / file, transformer, "rope_max_seq_len", 1024),
            max_sequence_length=_count(folder / OWN_FILE, own, "max_sequence_length", 512),
            own_defaults=own_defaults(folder, own, None) if "defaults" in own else None,
        )
        _refuse(folder, config, index, transformer, vae)
        return config


def read_components(folder: Path) -> Mapping[Stage, tuple[str, ...]]:
    """By stage, what it opens of this folder; raises CheckpointError."""
    index = read_json(folder, "model_index.json")
    encoder = ("image_encoder", "image_processor") if _has(index, "image_encoder") else ()
    return {
        "encode": ("tokenizer", "text_encoder"),
        "denoise": (*_experts(folder, index), "scheduler"),
        "decode": ("vae", *encoder),
    }


def _has(index: dict[str, Any], component: str) -> bool:
    return (index.get(component) or [None])[0] is not None


def _experts(folder: Path, index: dict[str, Any]) -> tuple[Expert, ...]:
    """Those that denoise. One of both may be all there is where the boundary leaves nothing to the other."""
    ratio = index.get("boundary_ratio")
    if ratio is not None and (type(ratio) not in (int, float) or not ratio >= 0):
        raise CheckpointError(f"{folder}: boundary_ratio={ratio!r} must be a number from 0 on")
    high, low = (_has(index, name) for name in EXPERTS)
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


def _embedded_frames(transformer: dict[str, Any]) -> int:
    if transformer.get("image_dim") is None:
        return 0
    return 1 if transformer.get("pos_embed_seq_len") is None else 2


def _refuse(
    folder: Path, config: WanConfig, index: dict[str, Any], transformer: dict[str, Any], vae: dict[str, Any]
) -> None:
    if len(config.experts) == 2:
        _check_alike(folder)
    channels, latent = transformer.get("in_channels", 16), config.latent_channels
    wanted = 2 * latent + config.temporal_factor if config.kind == "image" else latent
    if config.embedded_frames:
        _refuse_embedded(folder, config, index)
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


def _refuse_embedded(folder: Path, config: WanConfig, index: dict[str, Any]) -> None:
    if config.kind != "image" or not _has(index, "image_encoder"):
        raise CheckpointError(
            f"{folder}: the transformer's image_dim is for a WanImageToVideoPipeline without expand_timesteps that has "
            "an image encoder"
        )
    if (kind := index["image_encoder"][1]) not in _IMAGE_ENCODERS:
        raise CheckpointError(f"{folder}: image_encoder is a {kind}, not one of {', '.join(_IMAGE_ENCODERS)}")
    if config.max_sequence_length != TEXT_TOKENS:
        raise CheckpointError(
            f"{folder}: max_sequence_length={config.max_sequence_length} must be {TEXT_TOKENS} beside an image encoder"
        )


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
