"""What a checkpoint is and can do: read from its config files, used to check a request before any work. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from raydiance.models.inputs import STANDARD, Accepts
from raydiance.models.spec import FieldError, Spec, Task

MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Defaults:
    """Used where a request is silent. Sizes in pixels."""

    height: int
    width: int
    num_frames: int
    fps: int
    num_inference_steps: int
    guidance_scale: float
    strength: float = 0.8


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number that one family takes beside those that all take, such as `true_cfg_scale`.

    Args:
        default: None: that of `guidance_scale`.
        integer: only whole numbers.
    """

    name: str
    low: float
    high: float
    default: float | None
    integer: bool = False


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Args:
    id: the name the model is served under.
    size_multiple: height and width are multiples of it (VAE factor times patch).
    frame_stride: num_frames is `frame_stride * k + 1`.
    max_tokens: the longest sequence that one request may bring to the transformer.
    min_steps: fewest steps of a schedule; equal to `max_steps` where a distilled model has a schedule of its own.
    inputs: what a task takes, where it differs from `inputs.STANDARD`.
    parameters: of this family; every spec has them all in `extra`.
    cfg_parameters: classifier-free guidance runs where one of these is above 1.
    has_guidance: whether `guidance_scale` means anything to it; a distilled model has none.
    has_negative: whether it can take a negative prompt at all.
    strength_tasks: those that start from a noised picture or video, by `strength`.
    has_audio: its videos can have sound.
    is_guest: diffusers' own pipeline runs it whole: no step batching, previews or checkpoints.
    is_simulated: nothing is generated; see docs/simulation.md.
    max_text_tokens: what an encoded prompt adds to the transformer's sequence at most; 0 where text is attended
        to beside it.
    num_heads: of the transformer's self-attention; 0 where it is not known.
    target_pixels: where it is not 0, only sizes of about this area are generated: those that scaling to it, and
        rounding down to `size_multiple`, leaves as they are.
    """

    id: str
    family: str
    tasks: tuple[Task, ...]
    defaults: Defaults
    size_multiple: int
    frame_stride: int
    spatial_factor: int
    temporal_factor: int
    patch: tuple[int, int, int]
    max_side: int = 4096
    max_frames: int = 1025
    max_tokens: int = 200_000
    max_steps: int = 200
    max_prompt_chars: int = 8_000
    max_guidance: float = 100.0
    max_fps: int = 120
    created: int = 0
    inputs: Mapping[Task, tuple[Accepts, ...]] = field(default_factory=dict)
    parameters: tuple[Parameter, ...] = ()
    cfg_parameters: tuple[str, ...] = ("guidance_scale",)
    has_guidance: bool = True
    has_negative: bool = True
    strength_tasks: tuple[Task, ...] = ("image-to-image",)
    strength_rounds_up: bool = False
    has_audio: bool = False
    is_guest: bool = False
    max_text_tokens: int = 0
    min_steps: int = 1
    target_pixels: int = 0
    num_heads: int = 0
    is_simulated: bool = False

    def num_tokens(self, height: int, width: int, num_frames: int) -> int:
        """Length of the transformer's sequence for what is generated: without text and reference pictures."""
        frames = (num_frames - 1) // self.temporal_factor + 1
        rows, cols = height // self.spatial_factor, width // self.spatial_factor
        return (frames // self.patch[0]) * (rows // self.patch[1]) * (cols // self.patch[2])

    def accepts(self, task: Task) -> tuple[Accepts, ...]:
        """What a task takes beside its texts."""
        return self.inputs.get(task, STANDARD[task])

    def uses_negative(self, spec: Spec) -> bool:
        """Whether the unconditional branch of classifier-free guidance runs, so that its text must be encoded."""
        return self.has_negative and any(self.value(spec, name) > 1.0 for name in self.cfg_parameters)

    def value(self, spec: Spec, name: str) -> float:
        """A number of the spec, `guidance_scale` or one of `parameters`, by name."""
        if name == "guidance_scale":
            return spec.guidance_scale
        value: float = spec.extra[name]
        return value

    def fill(self, given: Mapping[str, float], guidance_scale: float) -> dict[str, float]:
        """`Spec.extra`: the family's parameters, those given and the defaults of the others."""
        filled = {}
        for p in self.parameters:
            value = given.get(p.name, guidance_scale if p.default is None else p.default)
            filled[p.name] = int(value) if p.integer and value == int(value) else value
        return filled

    def with_defaults(self, values: Mapping[str, float]) -> ModelCard:
        """Other defaults, by the names of `Defaults`; raises FieldError for an unknown one or no number of its kind."""
        known = asdict(self.defaults)
        for name, value in values.items():
            if name not in known:
                raise FieldError(f"defaults.{name}", f"defaults.{name} is not one of {', '.join(known)}")
            if type(known[name]) is int and value != int(value):
                raise FieldError(f"defaults.{name}", f"defaults.{name}={value} must be a whole number")
        whole: dict[str, Any] = {n: int(v) if type(known[n]) is int else float(v) for n, v in values.items()}
        return replace(self, defaults=replace(self.defaults, **whole))

    def check(self, spec: Spec) -> Spec:
        """Returns the spec; raises FieldError that names the field, the value and the limit."""
        if spec.task not in self.tasks:
            raise FieldError("task", f"model '{self.id}' cannot do '{spec.task}'; it does {', '.join(self.tasks)}")
        _text("prompt", spec.prompt, self.max_prompt_chars, required=True)
        _text("negative_prompt", spec.negative_prompt, self.max_prompt_chars, required=False)
        for name, side in (("height", spec.height), ("width", spec.width)):
            _between(name, side, self.size_multiple, self.max_side)
            if side % self.size_multiple:
                raise FieldError(name, f"{name}={side} must be a multiple of {self.size_multiple}")
        self._check_area(spec)
        self._check_frames(spec)
        _between("num_inference_steps", spec.num_inference_steps, self.min_steps, self.max_steps)
        _between("guidance_scale", spec.guidance_scale, 0.0, self.max_guidance)
        _between("fps", spec.fps, 1, self.max_fps)
        _between("seed", spec.seed, 0, MAX_SEED)
        _between("strength", spec.strength, 0.0, 1.0)
        if spec.first_step >= spec.num_inference_steps:
            raise FieldError(
                "strength",
                f"strength={spec.strength} of num_inference_steps={spec.num_inference_steps} leaves no step to run",
            )
        tokens = self.num_tokens(spec.height, spec.width, spec.num_frames)
        if tokens > self.max_tokens:
            raise FieldError(
                "size",
                f"{spec.width}x{spec.height} with {spec.num_frames} frames is {tokens} tokens; "
                f"the limit of model '{self.id}' is {self.max_tokens}",
            )
        if spec.audio and not (self.has_audio and spec.is_video):
            raise FieldError("audio", f"audio=true: model '{self.id}' makes no sound with {spec.task}")
        self._check_extra(spec)
        return spec

    def _check_area(self, spec: Spec) -> None:
        size = height, width = spec.height, spec.width
        while self.target_pixels and (fitted := self._fitted(*size)) != size:
            size = fitted
        if size != (height, width):
            raise FieldError(
                "height",
                f"height={height}, width={width}: model '{self.id}' generates about {self.target_pixels} pixels; "
                f"the nearest size is height={size[0]}, width={size[1]}",
            )

    def _fitted(self, height: int, width: int) -> tuple[int, int]:
        """Of `target_pixels`, in nearly the same proportions."""
        scale, multiple = math.sqrt(self.target_pixels / (width * height)), self.size_multiple
        fitted_height, fitted_width = (int(side * scale // multiple * multiple) for side in (height, width))
        return max(fitted_height, multiple), max(fitted_width, multiple)

    def _check_extra(self, spec: Spec) -> None:
        known = {p.name: p for p in self.parameters}
        for name in spec.extra:
            if name not in known:
                raise FieldError(name, f"model '{self.id}' has no parameter '{name}'")
        for name, p in known.items():
            if name not in spec.extra:
                raise FieldError(name, f"{name} is missing; model '{self.id}' needs it (see ModelCard.fill)")
            _between(name, spec.extra[name], p.low, p.high)
            if p.integer and spec.extra[name] != int(spec.extra[name]):
                raise FieldError(name, f"{name}={spec.extra[name]} must be a whole number")

    def _check_frames(self, spec: Spec) -> None:
        if not spec.is_video and spec.num_frames != 1:
            raise FieldError("num_frames", f"num_frames={spec.num_frames} must be 1 for {spec.task}")
        _between("num_frames", spec.num_frames, 1, self.max_frames)
        if (spec.num_frames - 1) % self.frame_stride:
            near = (spec.num_frames - 1) // self.frame_stride * self.frame_stride + 1
            raise FieldError(
                "num_frames",
                f"num_frames={spec.num_frames} must be {self.frame_stride}k+1 "
                f"(nearest: {near} and {near + self.frame_stride})",
            )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelCard:
        return cls(
            **{
                **values,
                "defaults": Defaults(**values["defaults"]),
                "tasks": tuple(values["tasks"]),
                "patch": tuple(values["patch"]),
                "inputs": {task: tuple(Accepts(**a) for a in items) for task, items in values["inputs"].items()},
                "parameters": tuple(Parameter(**p) for p in values["parameters"]),
                "cfg_parameters": tuple(values["cfg_parameters"]),
                "strength_tasks": tuple(values["strength_tasks"]),
            }
        )


def _text(name: str, text: str, limit: int, *, required: bool) -> None:
    if required and not text.strip():
        raise FieldError(name, f"{name} is empty; it needs at least 1 character")
    if len(text) > limit:
        raise FieldError(name, f"{name} has {len(text)} characters; the limit is {limit}")


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # also refuses NaN
        raise FieldError(name, f"{name}={value} must be between {low} and {high}")
