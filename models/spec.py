"""What is to be generated, resolved and frozen: the immutable half of a trajectory. Knows no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Task = Literal["text-to-image", "text-to-video", "image-to-video", "image-to-image"]
TASKS: tuple[str, ...] = get_args(Task)
VIDEO_TASKS: frozenset[str] = frozenset({"text-to-video", "image-to-video"})


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
        strength: image-to-image: the share of the schedule that is run, in (0, 1].
        extra: parameters of one family alone, by the field's names.
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
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_video(self) -> bool:
        return self.task in VIDEO_TASKS

    @property
    def first_step(self) -> int:
        """Where it enters the schedule: image-to-image by strength skips the noisiest steps, as diffusers does."""
        if self.task != "image-to-image":
            return 0
        return self.num_inference_steps - int(self.num_inference_steps * self.strength)

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "extra": dict(self.extra)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Spec:
        """Raises TypeError on an unknown or missing field."""
        return cls(**values)
