"""Videos that came along: bounded before and while they are decoded, upright, one frame at a time."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import av
import numpy as np
from numpy.typing import NDArray

from raydiance.serve.containers import Container, check_container, container_of
from raydiance.serve.edge_config import LimitsConfig
from raydiance.serve.errors import InvalidRequest, RaydianceError, TooLarge, UnsupportedMedia
from raydiance.serve.request import Clip

Frame = NDArray[np.uint8]
CODECS = ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "prores", "mjpeg")
# ours by the first bytes -> the one demuxer that may open it: others (playlists, lists of files) open further files
_DEMUXERS = {"mp4": "mov", "webm": "matroska"}


def check_clip(data: bytes, limits: LimitsConfig, field: str) -> Clip:
    """What the video is, after every frame was decoded once and dropped.

    Args:
        field: what the errors name.

    Raises:
        TooLarge: more bytes, frames, or pixels a frame than `limits` allow; by its header, or as soon as it has them.
        UnsupportedMedia: not MP4, MOV or WebM, no video in it, or of another codec.
        InvalidRequest: truncated or damaged.
    """
    if len(data) > limits.max_video_bytes:
        raise TooLarge(f"the video has {len(data)} bytes; at most {limits.max_video_bytes} are taken", field)
    check_container(data, _container(data, field), limits.max_video_frames, field)
    try:
        with _opened(data, field) as (file, stream):
            _check_header(stream, limits, field)
            stream.codec_context.options = {"max_pixels": str(limits.max_image_pixels)}
            size, num_frames = (0, 0), 0
            for frame in file.decode(stream):
                num_frames += 1
                if num_frames > limits.max_video_frames:
                    raise TooLarge(f"the video has more than {limits.max_video_frames} frames", field)
                if frame.is_corrupt:
                    raise InvalidRequest("the video is truncated or damaged", field)
                size = size if num_frames > 1 else _upright_size(frame)
            fps = float(stream.average_rate or stream.guessed_rate or 0)
    except RaydianceError:
        raise
    except (av.FFmpegError, ValueError, IndexError, OverflowError) as e:
        raise InvalidRequest("the video is truncated or damaged", field) from e
    if not num_frames or not fps:
        raise InvalidRequest("the video has no frames", field)
    return Clip(width=size[0], height=size[1], num_frames=num_frames, fps=fps)


def _container(data: bytes, field: str) -> Container:
    container = container_of(data)
    if container is None:
        raise UnsupportedMedia("the video is none of MP4, MOV, WebM", field)
    return container


def _check_header(stream: av.VideoStream, limits: LimitsConfig, field: str) -> None:
    codec = stream.codec_context
    if codec.name not in (*CODECS, "libdav1d"):
        raise UnsupportedMedia(f"the video is {codec.name}; taken are {', '.join(CODECS)}", field)
    if codec.width * codec.height > limits.max_image_pixels:
        size = f"{codec.width}x{codec.height}"
        raise TooLarge(f"the video is {size}; at most {limits.max_image_pixels} pixels are taken", field)


@contextmanager
def _opened(data: bytes, field: str = "video") -> Iterator[tuple[av.container.InputContainer, av.VideoStream]]:
    with av.open(io.BytesIO(data), "r", format=_DEMUXERS[_container(data, field)], metadata_errors="ignore") as file:
        streams = [s for s in file.streams.video if not s.disposition & av.stream.Disposition.attached_pic]
        if not streams:
            raise UnsupportedMedia("there is no video in the file", field)
        yield file, streams[0]


def frames(data: bytes) -> Iterator[Frame]:
    """Frames [H, W, 3] of a video that `check_clip` let in. Raises ValueError where it is damaged since."""
    try:
        with _opened(data) as (file, stream):
            for frame in file.decode(stream):
                yield np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90) % 4)
    except (av.FFmpegError, RaydianceError) as e:
        raise ValueError(f"the stored video is damaged: {e}") from e


def last_frame(data: bytes) -> Frame:
    """[H, W, 3]. Raises ValueError where there is none."""
    last = deque(frames(data), maxlen=1)
    if not last:
        raise ValueError("the stored video has no frames")
    return last[0]


def pick(data: bytes, indices: Collection[int]) -> NDArray[np.uint8]:
    """Those frames [N, H, W, 3], in order of time; no more than they are held. Raises ValueError."""
    picked = [frame for i, frame in enumerate(frames(data)) if i in indices]
    if not picked:
        raise ValueError("the stored video has none of these frames")
    return np.stack(picked)


def _upright_size(frame: av.VideoFrame) -> tuple[int, int]:
    turned = round(frame.rotation / 90) % 2
    return (frame.height, frame.width) if turned else (frame.width, frame.height)
