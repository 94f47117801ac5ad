from __future__ import annotations

import io
import weakref
from collections.abc import Iterator
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from raydiance.serve import imaging, media

Frames = NDArray[np.uint8]
FORMATS = ["mp4", "webm"]


def _clip(num_frames: int = 17, height: int = 64, width: int = 96) -> Frames:
    """Three smooth waves of colour that move."""
    t, y, x = (np.linspace(0, 1, n) for n in (num_frames, height, width))
    phase = (x + 0.5 * y[:, None] + 0.3 * t[:, None, None])[..., None] + np.array([0, 1 / 3, 2 / 3])
    wave: Frames = ((0.5 + 0.5 * np.sin(2 * np.pi * phase)) * 255).round().astype(np.uint8)
    return wave


def _psnr(a: Frames, b: Frames) -> float:
    return float(10 * np.log10(255**2 / np.square(a.astype(float) - b).mean()))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("fps", [16, 24, 29.97])
def test_a_clip_comes_back(format: Any, fps: float) -> None:
    clip = _clip()
    frames, decoded_fps = media.decode_video(media.encode_video([clip], fps, format))
    assert frames.shape == clip.shape
    assert decoded_fps == pytest.approx(fps, rel=1e-3)
    assert _psnr(frames, clip) > 30


@pytest.mark.parametrize("format", FORMATS)
def test_colours_are_right(format: Any) -> None:
    """A wrong matrix (BT.601 for BT.709) moves pure colours by more than 10."""
    for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255), (128, 128, 128)):
        clip = np.broadcast_to(np.array(colour, np.uint8), (3, 64, 64, 3))
        frames, _ = media.decode_video(media.encode_video([clip], 8, format))
        assert np.abs(frames.astype(int) - clip).max() <= 6, colour


@pytest.mark.parametrize("format", FORMATS)
def test_the_colour_space_is_written_in_the_file(format: Any) -> None:
    with av.open(io.BytesIO(media.encode_video([_clip()], 8, format))) as container:
        context = container.streams.video[0].codec_context
        assert (context.pix_fmt, context.colorspace, context.color_range) == ("yuv420p", 1, 1)
        assert (context.color_primaries, context.color_trc) == (1, 1)


@pytest.mark.parametrize("format", FORMATS)
def test_chunks_do_not_change_the_file(format: Any) -> None:
    clip = _clip()
    whole = media.encode_video([clip], 16, format, threads=1)
    parts = [clip[:0], clip[:1], clip[1:9], clip[9:9], clip[9:]]
    assert all(media.encode_video(iter(parts), 16, format, threads=1) == whole for _ in range(5))


def test_one_chunk_is_held_at_a_time() -> None:
    alive: list[weakref.ref[Frames]] = []
    most = 0

    def chunks() -> Iterator[Frames]:
        nonlocal most
        for _ in range(6):
            chunk = _clip(4).copy()
            alive.append(weakref.ref(chunk))
            most = max(most, sum(r() is not None for r in alive))
            yield chunk
            del chunk

    media.encode_video(chunks(), 16)
    assert most <= 2


def test_an_mp4_can_be_played_while_it_loads() -> None:
    data = media.encode_video([_clip()], 16, "mp4")
    assert data.index(b"moov") < data.index(b"mdat")


def test_one_frame_is_a_video() -> None:
    frames, _ = media.decode_video(media.encode_video([_clip(1)], 16))
    assert frames.shape == (1, 64, 96, 3)


@pytest.mark.parametrize("size", [(63, 64), (64, 63)])
def test_odd_sizes_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"{size[1]}x{size[0]}.*even"):
        media.encode_video([_clip(2, *size)], 16)


def test_bad_chunks_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        media.encode_video([], 16)
    with pytest.raises(ValueError, match="of one size"):
        media.encode_video([_clip(2), _clip(2, 32)], 16)
    with pytest.raises(ValueError, match="float64"):
        media.encode_video([_clip(2) / 255], 16)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="of one size"):
        media.encode_video([_clip(2)[..., :1]], 16)


@pytest.mark.parametrize(
    "data", [b"", b"no video", imaging.encode_image(_clip(1)[0])[:60]], ids=["empty", "text", "cut"]
)
def test_what_is_no_video(data: bytes) -> None:
    with pytest.raises(ValueError, match="no video"):
        media.decode_video(data)


def _open(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def test_thumbnail_is_the_middle_frame() -> None:
    clip = _clip()
    small = _open(media.thumbnail(clip))
    assert (small.format, small.size) == ("WEBP", (96, 64))
    assert _psnr(np.asarray(small.convert("RGB")), clip[8]) > 30
    assert _open(media.thumbnail(_clip(1, 600, 1200), "jpeg")).size == (512, 256)


def test_spritesheet_runs_from_the_first_to_the_last_frame() -> None:
    clip = np.broadcast_to(np.arange(0, 250, 2, dtype=np.uint8)[:, None, None, None], (125, 64, 96, 3))
    sheet = _open(media.spritesheet(clip, columns=3, rows=2, cell_width=48, format="png"))
    assert sheet.size == (3 * 48, 2 * 32)
    values = [sheet.getpixel((48 * c + 24, 32 * r + 16)) for r in range(2) for c in range(3)]
    assert values == [(v, v, v) for v in (0, 50, 100, 148, 198, 248)]
    assert _open(media.spritesheet(clip[:2])).size == (2 * 192, 128), "a short clip fills one row"


def test_contact_sheet_holds_every_frame() -> None:
    clip = _clip(5)
    sheet = np.asarray(_open(media.contact_sheet(clip, 2)))
    assert sheet.shape == (3 * 64, 2 * 96, 3)
    for i, frame in enumerate(clip):
        row, column = divmod(i, 2)
        assert np.array_equal(sheet[row * 64 : row * 64 + 64, column * 96 : column * 96 + 96], frame)
    assert not sheet[2 * 64 :, 96:].any()
