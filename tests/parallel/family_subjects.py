"""Requests of every family that ranks share: even and odd numbers of tokens, heads that do not divide, guidance."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.families import flux, hidream, ltx, wan
from tests.families.kit import Case, Model

from raydiance.models.inputs import Inputs
from raydiance.models.spec import Spec


@dataclass(frozen=True, eq=False)
class Subject:
    """Args:
    size: its name in `SIZES`; the number of tokens that are denoised is `even` or `odd`.
    """

    model: Model
    spec: Spec
    size: str
    guided: bool
    inputs: Inputs | None = None

    @property
    def id(self) -> str:
        guidance = "guided" if self.guided else "plain"
        return f"{self.model.name}-{self.spec.task}-{self.size}-{guidance}"

    @property
    def case(self) -> Case:
        return Case(self.id, self.spec, self.inputs)

    @property
    def is_odd(self) -> bool:
        return self.size.startswith("odd")

    @property
    def has_three_heads(self) -> bool:
        return self.model.name.endswith("-3-heads")

    @property
    def family(self) -> str:
        return self.model.name.split("-")[0]


Make = Callable[..., Spec]
Values = Mapping[str, Any]
SIZES: dict[str, dict[str, Values]] = {
    "wan": {
        "even": {"height": 32, "width": 64, "num_frames": 5},
        "odd": {"height": 48, "width": 48, "num_frames": 9},
    },
    "flux": {"even": {"height": 64, "width": 64}, "odd": {"height": 48, "width": 80}},
    "flux-kontext": {"even": {"height": 128, "width": 128}, "odd": {"height": 192, "width": 192}},
    "hidream": {"even": {"height": 28, "width": 36}, "even-square": {"height": 32, "width": 32}},
    "hidream-odd": {"odd": {"height": 24, "width": 32}, "odd-square": {"height": 28, "width": 28}},
    "hidream-3-heads": {"odd": {"height": 24, "width": 32}},
    "ltx": {
        "even": {"height": 64, "width": 64, "num_frames": 9},
        "odd": {"height": 96, "width": 96, "num_frames": 17},
    },
}
"""By family, or by model."""


def twins(
    model: Model, make: Make, size: str, inputs: Inputs | None = None, *, on: Values | None = None, off: Values
) -> list[Subject]:
    """A request with guidance and one without, of two steps."""
    sizes = SIZES.get(model.name, SIZES[model.name.split("-")[0]])
    return [
        Subject(model, make(num_inference_steps=2, **sizes[size], **values), size, guided, inputs)
        for guided, values in ((True, on or {}), (False, off))
    ]


def of_wan(model: Model, task: str, size: str, inputs: Inputs | None = None, **extra: float) -> list[Subject]:
    plain = {name: 1.0 if "guidance" in name else scale for name, scale in extra.items()}
    make = functools.partial(wan.spec, task)
    return twins(model, make, size, inputs, on={"extra": extra}, off={"extra": plain, "guidance_scale": 1.0})


def of_flux(model: Model, task: str, size: str, inputs: Inputs | None = None) -> list[Subject]:
    make = functools.partial(flux.spec, task, "kontext" if model is KONTEXT else "dev")
    return twins(model, make, size, inputs, on={"true_cfg_scale": 4.0}, off={"true_cfg_scale": 1.0})


def of_hidream(model: Model, size: str, kind: str = "full") -> list[Subject]:
    return twins(model, functools.partial(hidream.spec, "text-to-image", kind), size, off={"guidance_scale": 1.0})


def of_ltx(
    model: Model, task: str, size: str, inputs: Inputs | None = None, on: Mapping[str, float] = ltx.SCALES
) -> list[Subject]:
    off = {"extra": {name: ltx.PLAIN[name] for name in on}, "guidance_scale": 1.0}
    return twins(model, functools.partial(ltx.spec, task), size, inputs, on={"extra": on}, off=off)


TI2V, T2V_A14B, I2V_A14B, VACE, _, I2V_2_1, _ = wan.MODELS
DEV, _, KONTEXT = flux.MODELS
FULL, FAST = hidream.MODELS
LTX, _ = ltx.MODELS
WITHOUT_STG = {name: scale for name, scale in ltx.SCALES.items() if "stg" not in name}
SUBJECTS = [
    *of_wan(TI2V, "text-to-video", "even"),
    *of_wan(TI2V, "text-to-video", "odd"),
    *of_wan(TI2V, "image-to-video", "odd", Inputs(wan.FIRST)),
    *of_wan(T2V_A14B, "text-to-video", "even", guidance_scale_2=2.0),
    *of_wan(T2V_A14B, "text-to-video", "odd", guidance_scale_2=2.0),
    *of_wan(I2V_A14B, "image-to-video", "odd", Inputs(wan.FIRST), guidance_scale_2=2.0),
    *of_wan(I2V_2_1, "image-to-video", "odd", Inputs(wan.FIRST)),
    *of_wan(VACE, "text-to-video", "even", Inputs(), conditioning_scale=0.7),
    *of_wan(VACE, "reference-to-video", "odd", Inputs(wan.REFERENCES), conditioning_scale=0.7),
    *of_wan(wan.THREE_HEADS, "text-to-video", "odd"),
    *of_flux(DEV, "text-to-image", "even"),
    *of_flux(DEV, "text-to-image", "odd"),
    *of_flux(KONTEXT, "text-to-image", "even"),
    *of_flux(KONTEXT, "image-edit", "odd", flux.given("reference", 180, 120)),
    *of_flux(flux.THREE_HEADS, "text-to-image", "odd"),
    *of_hidream(FULL, "even"),
    *of_hidream(FULL, "even-square"),
    *of_hidream(hidream.ODD, "odd"),
    *of_hidream(hidream.ODD, "odd-square"),
    *of_hidream(hidream.THREE_HEADS, "odd"),
    *of_ltx(LTX, "text-to-video", "even"),
    *of_ltx(LTX, "text-to-video", "odd"),
    *of_ltx(LTX, "image-to-video", "odd", ltx.given()),
    *of_ltx(ltx.OLD, "image-to-video", "odd", ltx.given(), WITHOUT_STG),
    *of_ltx(ltx.THREE_HEADS, "text-to-video", "odd"),
]
"""Each with its twin: guided first."""


def _of(name: str) -> Subject:
    (found,) = [subject for subject in SUBJECTS if subject.id == name]
    return found


TWINS = list(zip(SUBJECTS[::2], SUBJECTS[1::2], strict=True))
"""Those that can share a forward."""
PAIRS = [
    (_of(f"{first}-guided"), _of(f"{second}-{guidance}"))
    for first, second in (
        ("wan-ti2v-text-to-video-odd", "wan-ti2v-text-to-video-even"),
        ("flux-dev-text-to-image-odd", "flux-dev-text-to-image-even"),
        ("hidream-odd-text-to-image-odd", "hidream-odd-text-to-image-odd-square"),
        ("ltx-text-to-video-odd", "ltx-text-to-video-even"),
    )
    for guidance in ("guided", "plain")
]
"""Of other sizes, for two lanes."""
WANDERERS = [
    replace(subject, spec=replace(subject.spec, num_inference_steps=5), size=f"{subject.size}-5-steps")
    for subject in (
        _of("wan-ti2v-image-to-video-odd-guided"),
        _of("wan-t2v-a14b-text-to-video-odd-guided"),
        _of("flux-dev-text-to-image-odd-guided"),
        _of("hidream-odd-text-to-image-odd-guided"),
        of_hidream(FAST, "even", "fast")[1],
        _of("ltx-image-to-video-odd-guided"),
    )
]
"""Of five steps, each in another way. The fifth one's solver draws noise at every step."""
