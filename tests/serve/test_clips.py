"""Videos from strangers: what is taken, what is refused, and that nothing is decoded before its header is believed."""

from __future__ import annotations

import io
import struct
import wave
from typing import Any, cast

import av
import numpy as np
import pytest
from PIL import Image

from raydiance.serve import clips, media
from raydiance.serve.edge_config import LimitsConfig
from raydiance.serve.errors import InvalidRequest, RaydianceError, TooLarge, UnsupportedMedia

LIMITS = LimitsConfig()
FPS = 8


def clip(num_frames: int = 9, width: int = 48, height: int = 32) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Frames of a grey that grows, so that they can be told apart after compression."""
    greys = np.linspace(20, 230, num_frames).round().astype(np.uint8)
    return np.broadcast_to(greys[:, None, None, None], (num_frames, height, width, 3)).copy()


def mp4(num_frames: int = 9, **size: int) -> bytes:
    return media.encode_video([clip(num_frames, **size)], FPS, "mp4")


def encoded(codec: str, format: str, pix_fmt: str = "yuv420p", num_frames: int = 5) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format=format) as container:
        stream = cast(av.VideoStream, container.add_stream(codec, rate=FPS))
        stream.width, stream.height, stream.pix_fmt = 64, 48, pix_fmt
        for frame in clip(num_frames, 64, 48):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    return file.getvalue()


def sound(format: str, codec: str) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format=format) as container:
        stream = cast(av.AudioStream, container.add_stream(codec, rate=8000, layout="mono"))
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def patched(data: bytes, box: bytes, offset: int, value: bytes) -> bytes:
    """Another value in the first box of a kind, `offset` bytes behind its name."""
    at = data.index(box) + 4 + offset
    return data[:at] + value + data[at + len(value) :]


@pytest.mark.parametrize("format", ["mp4", "webm"])
def test_what_a_video_is(format: Any) -> None:
    found = clips.check_clip(media.encode_video([clip()], FPS, format), LIMITS, "video")
    assert (found.width, found.height, found.num_frames, found.fps) == (48, 32, 9, FPS)


@pytest.mark.parametrize(
    ("codec", "format", "pix_fmt"),
    [
        ("libx264", "mov", "yuv444p"),
        ("libx264", "matroska", "yuv420p"),
        ("libvpx", "webm", "yuv420p"),
        ("libx265", "mp4", "yuv420p10le"),
        ("mjpeg", "mov", "yuvj420p"),
        ("mpeg4", "mp4", "yuv420p"),
    ],
)
def test_codecs_and_containers(codec: str, format: str, pix_fmt: str) -> None:
    data = encoded(codec, format, pix_fmt)
    assert clips.check_clip(data, LIMITS, "video").num_frames == 5
    greys = np.stack(list(clips.frames(data))).mean(axis=(1, 2, 3))
    assert np.abs(greys - clip(5)[:, 0, 0, 0]).max() < 6


def test_frames_are_read_as_media_reads_them() -> None:
    data = mp4()
    frames, _ = media.decode_video(data)
    assert np.array_equal(np.stack(list(clips.frames(data))), frames)
    assert np.array_equal(clips.last_frame(data), frames[-1])
    assert np.array_equal(clips.pick(data, [1, 7]), frames[[1, 7]])


def test_a_phones_video_is_upright() -> None:
    """Stored lying, with a matrix that turns it by 90 degrees clockwise."""
    lying = clip()
    lying[:, :, :24] = 255  # its left becomes the top
    matrix = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 32 << 16, 0, 1 << 30)
    data = patched(media.encode_video([lying], FPS), b"tkhd", 40, matrix)
    found = clips.check_clip(data, LIMITS, "video")
    assert (found.width, found.height) == (32, 48)
    first = next(clips.frames(data))
    assert first.shape == (48, 32, 3)
    assert first[:20].mean() > 240
    assert first[28:].mean() < 60


def png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "PNG")
    return file.getvalue()


def wav() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 8000, 0, "NONE", ""))
        out.writeframes(bytes(8000))
    return file.getvalue()


BAD = {
    "nothing": (b"", UnsupportedMedia, "MP4, MOV, WebM"),
    "text": (b"not a video at all", UnsupportedMedia, "MP4, MOV, WebM"),
    "picture": (png(), UnsupportedMedia, "MP4, MOV, WebM"),
    "picture in the same boxes": (b"\0\0\0\x1cftypavif" + bytes(100), UnsupportedMedia, "MP4, MOV, WebM"),
    "wave": (wav(), UnsupportedMedia, "MP4, MOV, WebM"),
    "playlist": (b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1/a.ts\n", UnsupportedMedia, "MP4, MOV, WebM"),
    "sound in an MP4": (sound("mp4", "aac"), UnsupportedMedia, "no video in the file"),
    "another codec": (encoded("ffv1", "matroska"), UnsupportedMedia, "ffv1"),
    "truncated MP4": (mp4()[:-200], InvalidRequest, "truncated"),
    "half an MP4": (mp4()[: len(mp4()) // 2], InvalidRequest, "truncated"),
    "truncated WebM": (encoded("libvpx", "webm")[:-50], InvalidRequest, "truncated"),
    "a head alone": (mp4()[:32], InvalidRequest, "truncated"),
    "a WebM's head": (b"\x1a\x45\xdf\xa3", InvalidRequest, "truncated"),
    "noise inside": (patched(mp4(), b"mdat", 0, bytes(range(256)) * 3), InvalidRequest, "damaged"),
    "many bytes": (mp4() + bytes(4096), TooLarge, "at most"),
    "many frames": (mp4(30), TooLarge, "30 frames; at most 20"),
    "many frames, untold": (encoded("libvpx", "webm", num_frames=30), TooLarge, "more than 20 frames"),
    "large frames": (mp4(2, width=256, height=256), TooLarge, "256x256; at most 10000 pixels"),
    "huge by its header": (patched(mp4(), b"stsz", 8, b"\x7f\xff\xff\xff"), TooLarge, "2147483647 frames"),
    "endless sound": (patched(sound("mp4", "aac"), b"stsz", 8, b"\x7f\xff\xff\xff"), TooLarge, "2147483647 samples"),
    "many boxes": (b"\0\0\0\x08free" * 200_000, TooLarge, "boxes"),
}
SMALL = LimitsConfig(max_video_frames=20, max_image_pixels=10_000, max_video_bytes=2 << 20)


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_video_for_us(name: str) -> None:
    data, error, words = BAD[name]
    limits = SMALL.model_copy(update={"max_video_bytes": len(mp4())}) if name == "many bytes" else SMALL
    with pytest.raises(error) as raised:
        clips.check_clip(data, limits, "inputs.0.source")
    caught = cast(RaydianceError, raised.value)
    assert caught.param == "inputs.0.source"
    assert words in caught.message


@pytest.mark.parametrize("name", ["huge by its header", "endless sound", "playlist", "truncated MP4", "many boxes"])
def test_a_bomb_is_refused_before_a_decoder_sees_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(av, "open", never)
    with pytest.raises(RaydianceError):
        clips.check_clip(BAD[name][0], SMALL, "video")


def test_a_header_that_lies_about_the_size_of_frames() -> None:
    """The decoder has the bound too: what the stream itself says counts."""
    data = mp4(2, width=256, height=256)
    at = data.index(b"avc1") + 4 + 24  # width and height of the sample entry
    lying = data[:at] + struct.pack(">HH", 16, 16) + data[at + 4 :]
    with pytest.raises((TooLarge, InvalidRequest)):
        clips.check_clip(lying, SMALL, "video")


@pytest.mark.parametrize("read", [clips.last_frame, lambda d: list(clips.frames(d)), lambda d: clips.pick(d, [0])])
def test_a_stored_file_that_was_damaged_since(read: Any) -> None:
    with pytest.raises(ValueError, match="damaged"):
        read(mp4()[:300])
    with pytest.raises(ValueError, match="none of these frames"):
        clips.pick(mp4(), [99])
