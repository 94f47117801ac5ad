"""Pictures in and out: what clients send is checked before it is decoded, what was made is encoded."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from raydiance.serve.edge_config import LimitsConfig
from raydiance.serve.errors import InvalidRequest, TooLarge, UnsupportedMedia
from raydiance.serve.request import ImageFormat

Frame = NDArray[np.uint8]
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
CONTENT_TYPES: dict[str, str] = {"png": "image/png", "webp": "image/webp", "jpeg": "image/jpeg"}
DEFAULT_QUALITY = 90
# what Pillow's decoders raise on a damaged file
_DAMAGED = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error, OverflowError)


def open_image(data: bytes, limits: LimitsConfig, field: str) -> Image.Image:
    """The picture as RGB: upright (EXIF), transparency laid on white, the first frame if it moves, no metadata.

    Args:
        field: what the errors name.

    Raises:
        TooLarge: more bytes, or by its header more pixels, than `limits` allow. No pixel has been decoded then.
        UnsupportedMedia: not a PNG, JPEG, WebP or GIF.
        InvalidRequest: truncated or damaged.
    """
    return _open(data, limits, field, _flatten)


def _open(data: bytes, limits: LimitsConfig, field: str, finish: Callable[[Image.Image], Image.Image]) -> Image.Image:
    if len(data) > limits.max_image_bytes:
        raise TooLarge(f"the image has {len(data)} bytes; at most {limits.max_image_bytes} are taken", field)
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        if image.width * image.height > limits.max_image_pixels:
            size = f"{image.width}x{image.height}"
            raise TooLarge(f"the image is {size}; at most {limits.max_image_pixels} pixels are taken", field)
        image.load()
        return finish(ImageOps.exif_transpose(image))
    except UnidentifiedImageError as e:
        raise UnsupportedMedia(f"the image is none of {', '.join(FORMATS)}", field) from e
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as e:
        raise TooLarge("the image has more pixels than can be decoded", field) from e
    except _DAMAGED as e:
        raise InvalidRequest("the image is truncated or damaged", field) from e


def open_mask(data: bytes, limits: LimitsConfig, field: str) -> Image.Image:
    """A mask as grey: 255 where to paint. Where it has transparency, that says so: what is transparent is painted.

    Raises as `open_image` does.
    """
    return _open(data, limits, field, _to_mask)


def _to_mask(image: Image.Image) -> Image.Image:
    if image.has_transparency_data:
        alpha = image.convert("RGBA").getchannel("A")
        if alpha.getextrema() != (255, 255):
            return ImageOps.invert(alpha)
    return _flatten(image).convert("L")


def open_stored(data: bytes) -> Image.Image:
    """A picture that `open_image` let in and that was stored as PNG since. The limits were for what clients send.

    Raises:
        InvalidRequest: the file is damaged.
    """
    try:
        return Image.open(io.BytesIO(data), formats=("PNG",)).convert("RGB")
    except _DAMAGED as e:
        raise InvalidRequest("the stored image is damaged") from e


def _flatten(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":  # 16-bit grey: `convert` would clip it at 255
        image = Image.fromarray((np.asarray(image) / 257).round().clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    rgb = image.convert("RGB")
    rgb.info = {}
    return rgb


def fit(image: Image.Image, width: int, height: int) -> Image.Image:
    """The image at `width` x `height`: its centre, cut to that shape and resized by Lanczos. Unchanged if it fits."""
    if image.size == (width, height):
        return image
    return ImageOps.fit(image, (width, height), Image.Resampling.LANCZOS, centering=(0.5, 0.5))


def encode_image(frame: Frame, format: ImageFormat = "png", compression: int | None = None) -> bytes:
    """One frame [H, W, 3] as a file.

    Args:
        compression: quality of JPEG and WebP in percent (90 if None). PNG is lossless and has none.
    """
    return encode_picture(Image.fromarray(np.ascontiguousarray(frame)), format, compression)


def encode_picture(image: Image.Image, format: ImageFormat = "png", compression: int | None = None) -> bytes:
    """The same for a Pillow image."""
    quality = DEFAULT_QUALITY if compression is None else compression
    options: dict[str, dict[str, Any]] = {
        "png": {"compress_level": 3},
        "webp": {"quality": quality},
        "jpeg": {"quality": quality, "subsampling": 0 if quality >= DEFAULT_QUALITY else 2},
    }
    file = io.BytesIO()
    image.save(file, format.upper(), **options[format])
    return file.getvalue()


def image_size(data: bytes) -> tuple[int, int]:
    """Width and height of a file that `encode_image` or `open_image` knows, from its header."""
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        return image.size
