"""Files in place of generated ones: they say that they are simulated. Small, and the same for the same size."""

from __future__ import annotations

from functools import lru_cache
from itertools import repeat

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from raydiance.serve import imaging, media
from raydiance.serve.request import ImageFormat, VideoFormat

WORD = "SIMULATED"
LONGEST_SIDE = 256
"""In pixels: larger sizes are made smaller, in their proportions."""


def fitted(width: int, height: int) -> tuple[int, int]:
    """The size of the file: even, as video formats want it."""
    scale = min(1.0, LONGEST_SIDE / max(width, height))
    return max(2, int(width * scale) // 2 * 2), max(2, int(height * scale) // 2 * 2)


@lru_cache(maxsize=64)
def picture(width: int, height: int, image_format: ImageFormat, compression: int | None = None) -> bytes:
    return imaging.encode_image(_placard(width, height), image_format, compression)


@lru_cache(maxsize=64)
def video(width: int, height: int, num_frames: int, fps: int, video_format: VideoFormat) -> bytes:
    frame = _placard(width, height)[None]
    return media.encode_video(repeat(frame, num_frames), fps, video_format)


def _placard(width: int, height: int) -> NDArray[np.uint8]:
    """White letters on violet, as wide as the picture."""
    image = Image.new("RGB", (width, height), "indigo")
    draw = ImageDraw.Draw(image)
    left, top, right, bottom = draw.textbbox((0, 0), WORD)
    letters = Image.new("L", (int(right), int(bottom)), 0)
    ImageDraw.Draw(letters).text((0, 0), WORD, fill=255)
    letters = letters.crop((int(left), int(top), int(right), int(bottom)))
    wide = max(1, width * 9 // 10)
    high = max(1, min(height, wide * letters.height // letters.width))
    image.paste("white", ((width - wide) // 2, (height - high) // 2), letters.resize((wide, high)))
    return np.asarray(image)
