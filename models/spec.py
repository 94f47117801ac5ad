"""What is to be generated, resolved and frozen: the immutable half of a trajectory. Knows no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Task = Literal[
    "text-to-image",
    "text-to-video",
    "image-to-video",
    "image-to-image",
    "image-edit",
    "reference-to-video",
    "video-to-video",
]
TASKS: tuple[Task, ...] = get_args(Task)
VIDEO_TASKS: frozenset[Task] = frozenset({"text-to-video", "image-to-video", "reference-to-video", "video-to-video"})


class FieldError(ValueError):
    """A request value that cannot be honoured.

    Args:
        field: the name of the request's field, as the client wrote it (`num_inference_steps`).
        message: a sentence that names the value and the limit.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message

    def __reduce__(self) -> tuple[type[FieldError], tuple[str, str]]:
        return type(self), (self.field, self.message)


@dataclass(frozen=True, slots=True)
class Spec:
    """One sample to generate, with every default resolved.

    Args:
        model: the name it is served under.
        height: pixels.
        width: pixels.
        num_frames: pixel frames; 1 for an image.
        fps: frames per second of the encoded video.
        seed: of this sample; two specs that are equal give equal pixels.
        strength: the share of the schedule that is run, in (0, 1]; below 1 for tasks that start from a given picture.
        strength_rounds_up: a fraction of a step counts as one, as in diffusers' FLUX; otherwise it is dropped.
        audio: whether the video has sound.
        extra: the family's own parameters (`ModelCard.parameters`), all of them.
    """

    model: str
    task: Task
    prompt: str
    height: int
    width: int
    num_frames: int
    num_inference_steps: int
    guidance_scale: float
    seed: int
    negative_prompt: str = ""
    fps: int = 8
    strength: float = 1.0
    strength_rounds_up: bool = False
    audio: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_video(self) -> bool:
        return self.task in VIDEO_TASKS

    @property
    def first_step(self) -> int:
        """Where it enters the schedule: below a strength of 1 the noisiest steps are skipped, as diffusers does."""
        steps, run = self.num_inference_steps, self.num_inference_steps * self.strength
        return int(steps - run) if self.strength_rounds_up else steps - int(run)

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "extra": dict(self.extra)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Spec:
        """Raises TypeError on an unknown or missing field."""
        return cls(**values)
