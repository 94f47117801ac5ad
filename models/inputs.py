"""What a request brings beside its texts: pictures in roles, a video, a mask. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, get_args

from raydiance.models.spec import Task

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

ImageRole = Literal["first_frame", "last_frame", "init", "reference"]
Role = Literal["first_frame", "last_frame", "init", "reference", "video", "mask"]
IMAGE_ROLES: tuple[ImageRole, ...] = get_args(ImageRole)


@dataclass(frozen=True, slots=True)
class Accepts:
    """An input that a task takes.

    Args:
        required: the task cannot do without it.
        max_count: how many of it; only `reference` is ever more than one.
    """

    role: Role
    required: bool = True
    max_count: int = 1


STANDARD: Final[Mapping[Task, tuple[Accepts, ...]]] = {
    "text-to-image": (),
    "text-to-video": (),
    "image-to-image": (Accepts("init"),),
    "image-edit": (Accepts("reference"),),
    "image-to-video": (Accepts("first_frame"),),
    "reference-to-video": (Accepts("reference"),),
    "video-to-video": (Accepts("video"),),
}
"""What a task takes where the card does not say otherwise."""


@dataclass(frozen=True)
class Inputs:
    """What `Family.encode_inputs` is given.

    Args:
        images: pictures by role, RGB. Those in the roles `first_frame`, `last_frame` and `init` have the spec's size;
            a `reference` is as it came.
        video: uint8 [T, H, W, 3] of the spec's size and number of frames.
        mask: uint8 [T, H, W] of the spec's size, 255 where the model is to paint and 0 where the video is kept;
            T is 1 where one mask is for every frame.
    """

    images: Mapping[ImageRole, list[Image]] = field(default_factory=dict)
    video: NDArray[np.uint8] | None = None
    mask: NDArray[np.uint8] | None = None

    def image(self, role: ImageRole) -> Image:
        """The one picture in a role; raises ValueError if there is none, or more."""
        found = self.images.get(role, [])
        if len(found) != 1:
            raise ValueError(f"one image of role '{role}' is needed; {len(found)} are given")
        return found[0]

    @property
    def roles(self) -> set[Role]:
        """What is there."""
        there: set[Role] = {role for role, images in self.images.items() if images}
        if self.video is not None:
            there.add("video")
        if self.mask is not None:
            there.add("mask")
        return there
