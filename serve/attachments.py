"""Files that go with a request: read here, sent as base64. No torch."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from raydiance.models.inputs import ImageRole
from raydiance.serve.request import ImageInput, Input, MaskInput, Source, VideoInput

if TYPE_CHECKING:
    from typing import TypeAlias

    from PIL.Image import Image

    FileLike: TypeAlias = str | PathLike[str] | bytes
    ImageLike: TypeAlias = FileLike | Image


def attach(
    *,
    image: ImageLike | None = None,
    image_role: ImageRole | None = None,
    last_frame: ImageLike | None = None,
    references: Sequence[ImageLike] = (),
    video: FileLike | None = None,
    mask: ImageLike | None = None,
) -> list[Input]:
    """The inputs of a request, each a file, its bytes, or a Pillow image.

    Args:
        image_role: None: the one that the task needs.
        mask: a picture for every frame, or a video.
    """
    inputs: list[Input] = []
    if image is not None:
        inputs.append(ImageInput(role=image_role, source=_source(image)))
    if last_frame is not None:
        inputs.append(ImageInput(role="last_frame", source=_source(last_frame)))
    inputs += [ImageInput(role="reference", source=_source(picture)) for picture in references]
    if video is not None:
        inputs.append(VideoInput(source=_source(video)))
    if mask is not None:
        inputs.append(MaskInput(source=_source(mask)))
    return inputs


def _source(file: ImageLike) -> Source:
    if isinstance(file, str | PathLike):
        content = Path(file).read_bytes()
    elif isinstance(file, bytes):
        content = file
    else:
        buffer = io.BytesIO()
        file.save(buffer, format="PNG")
        content = buffer.getvalue()
    return Source(b64=base64.b64encode(content).decode())
