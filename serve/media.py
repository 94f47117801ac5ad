"""Videos in and out (PyAV), and the pictures that are made of them: thumbnail, spritesheet, contact sheet."""

from __future__ import annotations

import io
import platform
import tempfile
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import numpy as np
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc
from numpy.typing import NDArray
from PIL import Image

from raydiance.models.family import Audio
from raydiance.serve import imaging
from raydiance.serve.request import ImageFormat, VideoFormat
from raydiance.serve.sound import Track
from raydiance.serve.sound import decode_sound as decode_sound  # beside decode_video

Frames = NDArray[np.uint8]
CONTENT_TYPES = {**imaging.CONTENT_TYPES, "mp4": "video/mp4", "webm": "video/webm"}
THUMBNAIL_SIDE = 512
# x264's AVX-512 code reads memory that was never written: equal frames give unequal bytes, and no time is gained
_X264 = {"x264-params": "asm=sse2,ssse3,sse4"} if platform.machine() in ("x86_64", "AMD64") else {}
_CODECS: dict[VideoFormat, tuple[str, dict[str, str]]] = {
    "mp4": ("libx264", {"preset": "veryfast", "crf": "18", **_X264}),
    "webm": ("libvpx-vp9", {"deadline": "good", "cpu-used": "5", "row-mt": "1", "crf": "24", "b": "0"}),
}
_INTERLEAVED = {"max_interleave_delta": "0"}  # x264 may hold back more than the 10 s that a muxer waits for a track
_CONTAINER_OPTIONS: dict[VideoFormat, dict[str, str]] = {
    "mp4": {"movflags": "+faststart", **_INTERLEAVED},
    "webm": {"fflags": "+bitexact", **_INTERLEAVED},  # else the file holds a random identifier
}


def encode_video(
    chunks: Iterable[Frames],
    fps: float,
    format: VideoFormat = "mp4",
    *,
    threads: int = 0,
    audio: Audio | None = None,
) -> bytes:
    """Frames as an MP4 (H.264) or WebM (VP9) file, 4:2:0 and BT.709. While a chunk is made, one is held.

    The same frames, sound and `threads` give the same bytes, however the frames are cut into chunks.

    Args:
        chunks: uint8 [t, H, W, 3], all of one size.
        fps: frames per second.
        threads: of the encoder; 0 = as it sees fit.
        audio: an audio track (see `Track`), as long as the video: longer sound is cut, shorter has silence after it.

    Raises:
        ValueError: there are no frames, their width or height is odd, a chunk has another shape or type, or the sound
            is not as `Audio` says, of more than two channels, or empty.
    """
    frames = _frames(chunks)
    frame = next(frames, None)
    if frame is None:
        raise ValueError("a video needs at least one frame")
    height, width, _ = frame.shape
    if width % 2 or height % 2:
        raise ValueError(f"{width}x{height}: a video's width and height must be even")
    codec, options = _CODECS[format]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"video.{format}"
        with av.open(str(path), "w", format=format, options=_CONTAINER_OPTIONS[format]) as container:
            rate = Fraction(fps).limit_denominator(1001)
            stream = cast(av.VideoStream, container.add_stream(codec, rate=rate, options=options))
            context = stream.codec_context
            context.width, context.height, context.pix_fmt, context.thread_count = width, height, "yuv420p", threads
            context.colorspace, context.color_range = Colorspace.ITU709, ColorRange.MPEG
            context.color_primaries, context.color_trc = ColorPrimaries.BT709, ColorTrc.BT709
            track = None if audio is None else Track(container, audio, rate, format)
            num_frames = 0
            while frame is not None:
                container.mux(stream.encode(_to_yuv(frame)))
                num_frames += 1
                if track is not None:
                    container.mux(track.push(num_frames))
                frame = next(frames, None)
            container.mux(stream.encode(None))
            if track is not None:
                container.mux(track.finish())
        return path.read_bytes()


def _frames(chunks: Iterable[Frames]) -> Iterator[Frames]:
    shape = None
    for chunk in chunks:
        shape = shape or chunk.shape[1:]
        if chunk.ndim != 4 or chunk.shape[3] != 3 or chunk.shape[1:] != shape or chunk.dtype != np.uint8:
            raise ValueError(f"a chunk is {chunk.dtype} {chunk.shape}; uint8 [t, H, W, 3] of one size is needed")
        yield from chunk


def _to_yuv(frame: Frames) -> av.VideoFrame:
    picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
    return picture.reformat(format="yuv420p", dst_colorspace=Colorspace.ITU709, dst_color_range=ColorRange.MPEG)


def decode_video(data: bytes) -> tuple[Frames, float]:
    """All frames of a video file, uint8 [T, H, W, 3], and its frames per second.

    Raises:
        ValueError: there is no video in it, or it is damaged.
    """
    try:
        with av.open(io.BytesIO(data), "r") as container:
            stream = container.streams.video[0]
            frames = [f.to_ndarray(format="rgb24") for f in container.decode(stream)]
            rate = stream.average_rate
    except (av.FFmpegError, IndexError) as e:
        raise ValueError(f"this is no video, or a damaged one: {e}") from e
    if not frames or rate is None:
        raise ValueError("the video has no frames")
    return np.stack(frames), float(rate)


def is_video(data: bytes) -> bool:
    """Whether a stored file is one of the video formats, by its first bytes (PNG is what pictures are stored as)."""
    return not data.startswith(b"\x89PNG")


def thumbnail(frames: Frames, format: ImageFormat = "webp") -> bytes:
    """The middle frame, at most 512 pixels wide and high, never enlarged."""
    image = Image.fromarray(frames[len(frames) // 2])
    image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.LANCZOS)
    return imaging.encode_picture(image, format)


def spritesheet(
    frames: Frames, columns: int = 5, rows: int = 5, cell_width: int = 192, format: ImageFormat = "jpeg"
) -> bytes:
    """Up to `columns` x `rows` frames, evenly spread from the first to the last, each `cell_width` pixels wide."""
    picked = frames[np.linspace(0, len(frames) - 1, min(len(frames), columns * rows)).round().astype(int)]
    height, width = frames.shape[1:3]
    cell = (cell_width, max(1, round(height * cell_width / width)))
    cells = [np.asarray(Image.fromarray(f).resize(cell, Image.Resampling.LANCZOS)) for f in picked]
    return imaging.encode_image(_grid(np.stack(cells), columns), format)


def contact_sheet(frames: Frames, columns: int) -> bytes:
    """All frames [N, H, W, 3] in rows of `columns`, at full size, as a PNG."""
    return imaging.encode_image(_grid(frames, columns), "png")


def _grid(frames: Frames, columns: int) -> Frames:
    count, height, width, _ = frames.shape
    columns = min(columns, count)
    rows = -(-count // columns)
    sheet = np.zeros((rows * columns, height, width, 3), np.uint8)
    sheet[:count] = frames
    grid = sheet.reshape(rows, columns, height, width, 3).swapaxes(1, 2)
    return grid.reshape(rows * height, columns * width, 3)
