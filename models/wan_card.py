"""What a Wan checkpoint can do, as it follows from its numbers. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from raydiance.models.card import Defaults, ModelCard, Parameter
from raydiance.models.inputs import Accepts
from raydiance.models.spec import Task
from raydiance.models.wan_config import WanConfig

MAX_REFERENCES = 8
_DIFFUSERS_MULTIPLE = 16  # WanPipeline.check_inputs refuses other heights and widths


def read_card(folder: Path, model_id: str) -> ModelCard:
    """The card of a Wan folder; raises CheckpointError."""
    return card_of(WanConfig.read(folder), model_id)


def card_of(config: WanConfig, model_id: str) -> ModelCard:
    multiple = math.lcm(
        _DIFFUSERS_MULTIPLE, config.spatial_factor * config.patch[1], config.spatial_factor * config.patch[2]
    )
    longest = config.max_positions * config.spatial_factor * min(config.patch[1:])
    positions = config.max_positions - (MAX_REFERENCES if config.kind == "vace" else 0)
    tasks = _tasks(config)
    card = ModelCard(
        id=model_id,
        family="wan",
        tasks=tasks,
        defaults=_defaults(config),
        size_multiple=multiple,
        frame_stride=config.temporal_factor,
        spatial_factor=config.spatial_factor,
        temporal_factor=config.temporal_factor,
        patch=config.patch,
        num_heads=config.num_heads,
        inputs=_inputs(config),
        parameters=_parameters(config),
        strength_tasks=("image-to-image", "video-to-video") if "image-to-image" in tasks else (),
    )
    return replace(
        card,
        max_side=min(card.max_side, longest) // multiple * multiple,
        max_frames=min(card.max_frames, (positions - 1) * config.temporal_factor + 1),
    )


def _tasks(config: WanConfig) -> tuple[Task, ...]:
    if config.kind == "vace":
        return "text-to-video", "text-to-image", "image-to-video", "reference-to-video", "video-to-video"
    if config.kind == "image":
        return ("image-to-video",)
    from_text: tuple[Task, ...] = ("text-to-video", "text-to-image")
    # diffusers' video-to-video, which starts from what is given, knows no second expert
    from_given: tuple[Task, ...] = ("image-to-image", "video-to-video") if len(config.experts) == 1 else ()
    return (*from_text, *from_given, *(("image-to-video",) if config.expand_timesteps else ()))


def _inputs(config: WanConfig) -> Mapping[Task, tuple[Accepts, ...]]:
    """What tasks take, where it is not what they take elsewhere.

    With VACE every task takes something, if only optionally: it encodes an empty video where none is given.
    """
    if config.kind == "text":
        return {}
    first, last = Accepts("first_frame"), Accepts("last_frame", required=config.embedded_frames == 2)
    if config.kind == "image":
        return {"image-to-video": (first,) if config.embedded_frames == 1 else (first, last)}
    references = Accepts("reference", required=False, max_count=MAX_REFERENCES)
    return {
        "text-to-video": (references,),
        "text-to-image": (references,),
        "image-to-video": (first, last),
        "reference-to-video": (replace(references, required=True),),
        "video-to-video": (Accepts("video"), Accepts("mask", required=False), references),
    }


def _defaults(config: WanConfig) -> Defaults:
    """The checkpoint's own, or what is recommended for the published one of these numbers."""
    if config.own_defaults is not None:
        return config.own_defaults
    defaults = Defaults(height=480, width=832, num_frames=81, fps=16, num_inference_steps=50, guidance_scale=5.0)
    if config.kind == "vace":
        return replace(defaults, num_inference_steps=30)
    if len(config.experts) == 2:
        guidance = 3.5 if config.kind == "image" else 4.0
        return replace(defaults, height=720, width=1280, num_inference_steps=40, guidance_scale=guidance)
    if config.expand_timesteps and config.latent_channels == 48:  # TI2V-5B
        return replace(defaults, height=704, width=1280, num_frames=121, fps=24)
    return defaults


def _parameters(config: WanConfig) -> tuple[Parameter, ...]:
    found = []
    if len(config.experts) == 2:
        recommended = 3.0 if config.kind == "text" and config.own_defaults is None else None  # T2V-A14B: 4 and 3
        found.append(Parameter("guidance_scale_2", 0.0, 100.0, recommended))
    if config.kind == "vace":
        found.append(Parameter("conditioning_scale", 0.0, 10.0, 1.0))
    return tuple(found)
