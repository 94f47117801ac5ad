"""The files that came with a job, as a family takes them: of the spec's size, and of its length. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from raydiance.models.inputs import IMAGE_ROLES, Accepts, ImageRole, Inputs
from raydiance.models.spec import Spec
from raydiance.serve import clips, imaging, media
from raydiance.serve.stages.messages import Given

Frames = NDArray[np.uint8]


def read_inputs(files: Sequence[tuple[Given, bytes]], spec: Spec) -> Inputs:
    """Decodes and fits them. References stay as they came: families scale them by rules of their own.

    A video is cut, or held at its last frame, to the spec's `num_frames`; a mask may be a picture or a video. A video
    in the role of a picture is one that is gone on from: its last frame.

    Raises:
        InvalidRequest, ValueError: a file is damaged.
    """
    images: dict[ImageRole, list[Image.Image]] = {}
    video, mask = None, None
    for item, data in files:
        is_video = media.is_video(data)
        if item.role == "video":
            video = _frames(data, spec)
        elif item.role == "mask":
            frames = _frames(data, spec) if is_video else _fit(np.asarray(imaging.open_stored(data)), spec)[None]
            mask = np.where(frames.mean(axis=-1) >= 128, 255, 0).astype(np.uint8)
        else:
            image = Image.fromarray(clips.last_frame(data)) if is_video else imaging.open_stored(data)
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


def joined(previous: bytes, chunks: Iterable[Frames], spec: Spec) -> Iterator[Frames]:
    """A video and what goes on from it [t, H, W, 3], as chunks of one. The frame that both have is there once.

    Raises:
        ValueError: `previous` is damaged.
    """
    for frame in clips.frames(previous):
        yield _fit(frame, spec)[None]
    skip = 1
    for chunk in chunks:
        if len(chunk) > skip:
            yield chunk[skip:]
        skip = max(0, skip - len(chunk))


def _frames(data: bytes, spec: Spec) -> Frames:
    """[T, H, W, 3]; no more than T frames are decoded."""
    frames = [_fit(frame, spec) for frame in islice(clips.frames(data), spec.num_frames)]
    if not frames:
        raise ValueError("the stored video has no frames")
    return np.stack(frames + frames[-1:] * (spec.num_frames - len(frames)))


def _fit(frame: Frames, spec: Spec) -> Frames:
    return np.asarray(imaging.fit(Image.fromarray(frame), spec.width, spec.height))
