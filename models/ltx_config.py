"""What an LTX-2 checkpoint's JSON files say, and the card that follows from them. No torch.

`raydiance.json` may also say `sigmas` (the schedule of a distilled checkpoint, as diffusers' argument of that name: it
goes through the scheduler's own shift) and `spatio_temporal_guidance_blocks` (numbers of the transformer's blocks).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from raydiance.models.card import Defaults, ModelCard, Parameter
from raydiance.models.own import OWN_FILE, own_defaults, read_own
from raydiance.models.resolve import CheckpointError, read_json
from raydiance.models.spec import Spec

_DEFAULTS = Defaults(height=512, width=768, num_frames=121, fps=24, num_inference_steps=30, guidance_scale=3.0)
_DIFFUSERS_MULTIPLE = 32  # LTX2Pipeline.check_inputs refuses other heights and widths
_CLASSES = {
    "text_encoder": ("Gemma3ForConditionalGeneration",),
    "transformer": ("LTX2VideoTransformer3DModel",),
    "vae": ("AutoencoderKLLTX2Video",),
    "audio_vae": ("AutoencoderKLLTX2Audio",),
    "vocoder": ("LTX2Vocoder", "LTX2VocoderWithBWE"),
}
_STG = ("stg_scale", "audio_stg_scale")
_PARAMETERS = (  # defaults are those of LTX2Pipeline.__call__
    Parameter("audio_guidance_scale", 0.0, 100.0, 7.0),
    Parameter("stg_scale", 0.0, 100.0, 1.0),
    Parameter("audio_stg_scale", 0.0, 100.0, 1.0),
    Parameter("modality_scale", 0.0, 100.0, 3.0),
    Parameter("audio_modality_scale", 0.0, 100.0, 3.0),
    Parameter("guidance_rescale", 0.0, 1.0, 0.7),
    Parameter("audio_guidance_rescale", 0.0, 1.0, 0.7),
)


@dataclass(frozen=True, slots=True)
class LTXConfig:
    """Args:
    latent_channels: of the video's latents; `audio_channels` and `audio_bins` of the sound's: [channels, length, bins].
    audio_rate: latents of sound per second.
    num_heads: of the transformer, for video and for sound.
    vocoder: name of its class.
    stg_blocks: the transformer's blocks whose self-attention spatio-temporal guidance skips; none where the blocks
        cannot do without it (`perturbed_attn` of the transformer, which LTX-2.0 lacks).
    sigmas: of a distilled checkpoint, else empty.
    pads_text: whether padding of the text reaches the transformer; connectors with learnable registers put those there.
    min_steps: a schedule that is stretched to a last sigma above 0 needs two steps.
    """

    latent_channels: int
    spatial_factor: int
    temporal_factor: int
    audio_channels: int
    audio_bins: int
    audio_rate: float
    num_heads: int
    vocoder: str
    stg_blocks: tuple[int, ...]
    sigmas: tuple[float, ...]
    pads_text: bool
    min_steps: int
    max_sequence_length: int
    defaults: Defaults

    @classmethod
    def read(cls, folder: Path) -> LTXConfig:
        """Raises CheckpointError for a variant of LTX that is not served."""
        index = read_json(folder, "model_index.json")
        transformer = read_json(folder, "transformer/config.json")
        vae, audio = read_json(folder, "vae/config.json"), read_json(folder, "audio_vae/config.json")
        connectors, scheduler = read_json(folder, "connectors/config.json"), read_json(folder, _SCHEDULER)
        own = read_own(folder)
        _refuse(folder, index, transformer, vae)
        scaling = vae.get("spatio_temporal_scaling", (True,) * 4)
        halvings = sum(scaling) if not isinstance(scaling, bool) else scaling * (len(vae["layers_per_block"]) - 1)
        min_steps = 1 if scheduler.get("shift_terminal") is None else 2
        sigmas = _sigmas(folder, own, min_steps)
        distilled: dict[str, Any] = {"num_inference_steps": len(sigmas), "guidance_scale": 1.0} if sigmas else {}
        return cls(
            latent_channels=vae.get("latent_channels", 128),
            spatial_factor=vae.get("spatial_compression_ratio") or vae.get("patch_size", 4) * 2**halvings,
            temporal_factor=vae.get("temporal_compression_ratio") or vae.get("patch_size_t", 1) * 2**halvings,
            audio_channels=audio.get("latent_channels", 8),
            audio_bins=audio.get("mel_bins", 64) // _AUDIO_FACTOR,
            audio_rate=audio.get("sample_rate", 16000) / audio.get("mel_hop_length", 160) / _AUDIO_FACTOR,
            num_heads=transformer.get("num_attention_heads", 32),
            vocoder=index["vocoder"][1],
            stg_blocks=_stg_blocks(folder, own, transformer),
            sigmas=sigmas,
            pads_text=connectors.get("video_connector_num_learnable_registers", 128) is None,
            min_steps=min_steps,
            max_sequence_length=_sequence_length(folder, own, connectors),
            defaults=replace(own_defaults(folder, own, _DEFAULTS), **distilled),
        )

    def card(self, model_id: str) -> ModelCard:
        distilled = bool(self.sigmas)
        parameters = tuple(p for p in _PARAMETERS if self.stg_blocks or p.name not in _STG)
        return ModelCard(
            id=model_id,
            family="ltx",
            tasks=("text-to-video", "image-to-video"),
            defaults=self.defaults,
            size_multiple=math.lcm(_DIFFUSERS_MULTIPLE, self.spatial_factor),
            frame_stride=self.temporal_factor,
            spatial_factor=self.spatial_factor,
            temporal_factor=self.temporal_factor,
            patch=(1, 1, 1),
            num_heads=self.num_heads,
            min_steps=len(self.sigmas) if distilled else self.min_steps,
            max_steps=len(self.sigmas) if distilled else 200,
            parameters=() if distilled else parameters,
            cfg_parameters=() if distilled else ("guidance_scale", "audio_guidance_scale"),
            has_guidance=not distilled,
            has_negative=not distilled,
            has_audio=True,
        )

    def latent_shape(self, spec: Spec) -> tuple[int, int, int, int]:
        """[C, T, H, W] of the video."""
        frames = (spec.num_frames - 1) // self.temporal_factor + 1
        return self.latent_channels, frames, spec.height // self.spatial_factor, spec.width // self.spatial_factor

    def audio_shape(self, spec: Spec) -> tuple[int, int, int]:
        """[C, L, M] of the sound. At least one latent: diffusers fails where a video is too short for any."""
        length = round(spec.num_frames / spec.fps * self.audio_rate)
        return self.audio_channels, max(1, length), self.audio_bins


_SCHEDULER = "scheduler/scheduler_config.json"
_AUDIO_FACTOR = 4  # AutoencoderKLLTX2Audio's, in time and in mel bins


def read_card(folder: Path, model_id: str) -> ModelCard:
    """The card of an LTX-2 folder; raises CheckpointError."""
    return LTXConfig.read(folder).card(model_id)


def _refuse(folder: Path, index: dict[str, Any], transformer: dict[str, Any], vae: dict[str, Any]) -> None:
    for name, classes in _CLASSES.items():
        found = (index.get(name) or [None, None])[1]
        if found not in classes:
            raise CheckpointError(f"{folder}: {name} is {found}; supported are {', '.join(classes)}")
    if (index.get("audio_scheduler") or [None])[0] is not None:
        raise CheckpointError(f"{folder} has an audio_scheduler; sound and picture are stepped by one scheduler here")
    for name in ("patch_size", "patch_size_t", "audio_patch_size", "audio_patch_size_t"):
        if transformer.get(name, 1) != 1:
            raise CheckpointError(f"{folder}: {name}={transformer[name]} of the transformer must be 1")
    noise = vae.get("decoder_inject_noise", False)
    if noise is True or (noise and any(noise)):
        raise CheckpointError(f"{folder}: decoder_inject_noise of the VAE draws noise that no seed repeats")


def _stg_blocks(folder: Path, own: dict[str, Any], transformer: dict[str, Any]) -> tuple[int, ...]:
    if not transformer.get("perturbed_attn", False):
        return ()
    blocks, layers = _list(folder, own, "spatio_temporal_guidance_blocks", [28]), transformer.get("num_layers", 48)
    for block in blocks:
        if type(block) is not int or not 0 <= block < layers:
            raise CheckpointError(
                f"{folder}: spatio_temporal_guidance_blocks={blocks}: the transformer has blocks 0 to {layers - 1}; "
                f"say in {OWN_FILE} which to skip, [] for none"
            )
    return tuple(blocks)


def _sigmas(folder: Path, own: dict[str, Any], min_steps: int) -> tuple[float, ...]:
    """Descending from at most 1 to above 0: to go from x0 to a velocity is to divide by them."""
    sigmas = tuple(float(s) for s in _list(folder, own, "sigmas", []))
    if not all(1 >= high > low for high, low in pairwise((*sigmas, 0.0))):
        raise CheckpointError(f"{folder / OWN_FILE}: sigmas={list(sigmas)} must descend from 1 at most to above 0")
    if 0 < len(sigmas) < min_steps:
        raise CheckpointError(f"{folder / OWN_FILE}: sigmas={list(sigmas)}: shift_terminal needs {min_steps} or more")
    return sigmas


def _sequence_length(folder: Path, own: dict[str, Any], connectors: dict[str, Any]) -> int:
    """Registers fill the text up in whole repetitions."""
    names = ("video_connector_num_learnable_registers", "audio_connector_num_learnable_registers")
    multiple = math.lcm(*(connectors.get(name, 128) or 1 for name in names))
    value = own.get("max_sequence_length", 1024)
    if type(value) is not int or value < 1 or value % multiple:
        raise CheckpointError(
            f"{folder / OWN_FILE}: max_sequence_length={value!r} must be a multiple of {multiple}, "
            "the connectors' registers"
        )
    return value


def _list(folder: Path, own: dict[str, Any], name: str, default: list[Any]) -> list[Any]:
    values = own.get(name, default)
    if not isinstance(values, list) or any(type(v) not in (int, float) for v in values):
        raise CheckpointError(f"{folder / OWN_FILE}: {name}={values!r} must be a list of numbers")
    return values
