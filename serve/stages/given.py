"""The files that came with a job, as a family takes them: of the spec's size, and of its length. No torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from raydiance.models.inputs import IMAGE_ROLES, Accepts, ImageRole, Inputs
from raydiance.models.spec import Spec
from raydiance.serve import imaging, media
from raydiance.serve.stages.messages import Given


def read_inputs(files: Sequence[tuple[Given, bytes]], spec: Spec) -> Inputs:
    """Decodes and fits them. References stay as they came: families scale them by rules of their own.

    A video is cut, or held at its last frame, to the spec's `num_frames`; a mask may be a picture or a video.

    Raises:
        InvalidRequest, ValueError: a file is damaged.
    """
    images: dict[ImageRole, list[Image.Image]] = {}
    video, mask = None, None
    for item, data in files:
        if item.role == "video":
            video = _frames(media.decode_video(data)[0], spec)
        elif item.role == "mask":
            if media.is_video(data):
                frames = _frames(media.decode_video(data)[0], spec)
            else:
                frames = _fit(np.asarray(imaging.open_stored(data))[None], spec)
            mask = np.where(frames.mean(axis=-1) >= 128, 255, 0).astype(np.uint8)
        else:
            image = imaging.open_stored(data)
            fitted = image if item.role == "reference" else imaging.fit(image, spec.width, spec.height)
            images.setdefault(item.role, []).append(fitted)
    return Inputs(images, video, mask)


def blank_inputs(spec: Spec, accepts: Sequence[Accepts]) -> Inputs:
    """Grey pictures and videos where a task cannot do without: for a generation that nobody looks at."""
    needed = {a.role for a in accepts if a.required}
    grey = Image.new("RGB", (spec.width, spec.height), "grey")
    images: dict[ImageRole, list[Image.Image]] = {role: [grey] for role in IMAGE_ROLES if role in needed}
    video = np.stack([np.asarray(grey)] * spec.num_frames) if "video" in needed else None
    mask = np.full((1, spec.height, spec.width), 255, np.uint8) if "mask" in needed else None
    return Inputs(images, video, mask)


def _frames(frames: NDArray[np.uint8], spec: Spec) -> NDArray[np.uint8]:
    held = frames[np.minimum(np.arange(spec.num_frames), len(frames) - 1)]
    return _fit(held, spec)


def _fit(frames: NDArray[np.uint8], spec: Spec) -> NDArray[np.uint8]:
    return np.stack([np.asarray(imaging.fit(Image.fromarray(f), spec.width, spec.height)) for f in frames])
