from __future__ import annotations

import io
import zlib
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from PIL import Image, PngImagePlugin

from raydiance.serve import imaging
from raydiance.serve.edge_config import LimitsConfig
from raydiance.serve.errors import InvalidRequest, RaydianceError, TooLarge, UnsupportedMedia

LIMITS = LimitsConfig(max_image_bytes=1 << 20, max_image_pixels=1_000_000)
FIELD = "inputs.0.source"


def _save(image: Image.Image, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def _picture(width: int = 48, height: int = 32) -> Image.Image:
    """Red to the left, blue to the right."""
    image = Image.new("RGB", (width, height), "red")
    image.paste("blue", (width // 2, 0, width, height))
    return image


def _near(pixel: Any, expected: tuple[int, int, int], tolerance: int = 12) -> bool:
    return all(abs(a - b) <= tolerance for a, b in zip(pixel, expected, strict=True))


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF"])
def test_known_formats(format: str) -> None:
    image = imaging.open_image(_save(_picture(), format), LIMITS, FIELD)
    assert (image.mode, image.size) == ("RGB", (48, 32))
    assert _near(image.getpixel((2, 2)), (255, 0, 0))
    assert _near(image.getpixel((45, 30)), (0, 0, 255))


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"<svg xmlns='http://www.w3.org/2000/svg'/>", _save(_picture(), "BMP")]
)
def test_other_formats_are_refused(data: bytes) -> None:
    with pytest.raises(UnsupportedMedia) as error:
        imaging.open_image(data, LIMITS, FIELD)
    assert error.value.param == FIELD


def test_too_many_bytes() -> None:
    with pytest.raises(TooLarge, match=r"1048577 bytes; at most 1048576") as error:
        imaging.open_image(bytes((1 << 20) + 1), LIMITS, FIELD)
    assert error.value.param == FIELD


def _png_header(width: int, height: int) -> bytes:
    """A PNG that promises a size and has no pixels: decoding it would fail, asking for its size does not."""
    ihdr = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    chunk = (13).to_bytes(4, "big") + ihdr + zlib.crc32(ihdr).to_bytes(4, "big")
    return b"\x89PNG\r\n\x1a\n" + chunk + b"\x00\x00\x00\x00IDAT" + zlib.crc32(b"IDAT").to_bytes(4, "big")


@pytest.mark.parametrize("size", [(1000, 1001), (12_000, 9_000), (60_000, 60_000)])
def test_bombs_are_refused_by_their_header(size: tuple[int, int]) -> None:
    with pytest.raises(TooLarge, match="pixels") as error:
        imaging.open_image(_png_header(*size), LIMITS, FIELD)
    assert error.value.param == FIELD


def test_a_picture_at_the_limit_is_taken() -> None:
    assert imaging.open_image(_save(_picture(1000, 1000), "PNG"), LIMITS, FIELD).size == (1000, 1000)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP"])
def test_truncated_files_are_refused(format: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = _save(Image.fromarray(noise), format)
    with pytest.raises(InvalidRequest, match="truncated or damaged"):
        imaging.open_image(data[: len(data) // 2], LIMITS, FIELD)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([_save(_picture(), f) for f in ("PNG", "JPEG", "WEBP", "GIF")]),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=8),
    st.integers(0, 10_000),
)
def test_damaged_files_raise_our_errors_only(data: bytes, changes: list[tuple[int, int]], cut: int) -> None:
    damaged = bytearray(data)
    for place, value in changes:
        damaged[place % len(data)] = value
    try:
        image = imaging.open_image(bytes(damaged[: len(data) - cut % len(data)]), LIMITS, FIELD)
    except RaydianceError as e:
        assert e.param == FIELD  # noqa: PT017
        return
    assert image.mode == "RGB"


def test_compressed_text_does_not_unpack_without_end() -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("k", "x" * (80 << 20), zip=True)
    with pytest.raises(InvalidRequest, match="damaged"):
        imaging.open_image(_save(_picture(), "PNG", pnginfo=info), LIMITS, FIELD)


def test_exif_orientation_is_applied_and_metadata_dropped() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise: its left becomes its top
    exif[0x010E] = "where I live"
    image = imaging.open_image(_save(_picture(), "JPEG", exif=exif, quality=95), LIMITS, FIELD)
    assert image.size == (32, 48)
    assert _near(image.getpixel((16, 2)), (255, 0, 0))
    assert _near(image.getpixel((16, 45)), (0, 0, 255))
    stored = Image.open(io.BytesIO(imaging.encode_picture(image, "png")))
    assert stored.info == {}
    assert not stored.getexif()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_is_laid_on_white(mode: str) -> None:
    image = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (0, 0, 4, 8))
    opened = imaging.open_image(_save(image.convert(mode), "PNG"), LIMITS, FIELD)
    assert opened.getpixel((1, 1)) == (0, 0, 0)
    assert opened.getpixel((6, 1)) == (255, 255, 255)


def test_half_transparency_is_mixed() -> None:
    opened = imaging.open_image(_save(Image.new("RGBA", (4, 4), (255, 0, 0, 128)), "PNG"), LIMITS, FIELD)
    assert _near(opened.getpixel((0, 0)), (255, 127, 127), 2)


@pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP"])
def test_animations_give_their_first_frame(format: str) -> None:
    frames = [Image.new("RGB", (16, 16), c) for c in ("red", "green", "blue")]
    data = _save(frames[0], format, save_all=True, append_images=frames[1:], duration=100)
    assert _near(imaging.open_image(data, LIMITS, FIELD).getpixel((8, 8)), (255, 0, 0))


def test_sixteen_bit_grey_keeps_its_range() -> None:
    ramp = np.linspace(0, 65_535, 256).round().astype(np.uint16)[None].repeat(4, 0)
    opened = np.asarray(imaging.open_image(_save(Image.fromarray(ramp), "PNG"), LIMITS, FIELD))
    assert np.array_equal(opened[0, :, 0], np.arange(256))


@pytest.mark.parametrize("mode", ["1", "L", "CMYK"])
def test_other_colour_modes(mode: str) -> None:
    data = _save(Image.new("RGB", (8, 8), "white").convert(mode), "JPEG" if mode == "CMYK" else "PNG")
    assert _near(imaging.open_image(data, LIMITS, FIELD).getpixel((4, 4)), (255, 255, 255))


def test_fit_cuts_the_centre() -> None:
    image = _picture(48, 32)
    assert imaging.fit(image, 48, 32) is image
    wide = imaging.fit(image, 16, 64)
    assert wide.size == (16, 64)
    assert _near(wide.getpixel((1, 32)), (255, 0, 0), 40)
    assert _near(wide.getpixel((14, 32)), (0, 0, 255), 40)
    stripes = Image.new("RGB", (90, 30), "white")
    stripes.paste("black", (30, 0, 60, 30))
    assert imaging.fit(stripes, 30, 30).getcolors() == [(900, (0, 0, 0))]


@pytest.mark.parametrize("format", ["png", "webp", "jpeg"])
def test_what_is_encoded_comes_back(format: Any) -> None:
    ramp = np.linspace(0, 255, 63 * 50 * 3).reshape(63, 50, 3).astype(np.uint8)[:, ::-1]  # odd, and not contiguous
    data = imaging.encode_image(ramp, format)
    assert imaging.image_size(data) == (50, 63)
    assert Image.open(io.BytesIO(data)).get_format_mimetype() == imaging.CONTENT_TYPES[format]
    back = np.asarray(imaging.open_image(data, LIMITS, FIELD)).astype(int)
    assert np.abs(back - ramp).max() <= (0 if format == "png" else 12)


@pytest.mark.parametrize("format", ["webp", "jpeg"])
def test_compression_is_quality(format: Any) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    sizes = [len(imaging.encode_image(noise, format, q)) for q in (0, 50, 90, 100)]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 4
    assert sizes[2] == len(imaging.encode_image(noise, format))


def test_a_stored_picture_may_be_larger_than_what_was_sent() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (700, 700, 3), dtype=np.uint8))
    opened = imaging.open_image(_save(noise, "JPEG"), LIMITS, FIELD)
    stored = imaging.encode_picture(opened)
    assert len(stored) > LIMITS.max_image_bytes
    assert np.array_equal(np.asarray(imaging.open_stored(stored)), np.asarray(opened))
    with pytest.raises(InvalidRequest, match="damaged"):
        imaging.open_stored(stored[:-1000])
