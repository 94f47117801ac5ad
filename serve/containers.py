"""What an MP4, MOV or WebM file says of itself, read without a decoder: which it is, whole or not, how long its tables.

A decoder that opens a file believes the counts in its header and takes memory for them. They are checked before.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Literal

from raydiance.serve.errors import InvalidRequest, TooLarge

Container = Literal["mp4", "webm"]
Box = tuple[bytes, int, int]  # kind, where its content begins, where it ends
MAX_BOXES = 100_000
MAX_OTHER_SAMPLES = 4_000_000  # of sound and subtitles
MAX_DEPTH = 8
_TOP = {b"ftyp", b"moov", b"wide", b"mdat", b"free", b"skip", b"pnot"}
_PICTURES = {b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1"}  # the same boxes, but pictures
_PARENTS = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf"}
_COUNT_AT = {b"stsz": 8, b"stz2": 8, b"trun": 4}  # boxes that list samples, and where they say how many
_EBML, _SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"


def container_of(data: bytes) -> Container | None:
    """By the first bytes; None for what is no video file."""
    if data[:4] == _EBML:
        return "webm"
    return "mp4" if data[4:8] in _TOP and data[8:12] not in _PICTURES else None


def check_container(data: bytes, container: Container, max_frames: int, field: str) -> None:
    """Raises InvalidRequest for a file that ends before it should, TooLarge for one that promises too much."""
    if container == "webm":
        if not _is_whole_webm(data):
            raise InvalidRequest("the video is truncated or damaged", field)
        return
    handler = b""
    for i, (kind, start, _) in enumerate(_boxes(data, 0, len(data), field)):
        if i >= MAX_BOXES:
            raise TooLarge(f"the video has more than {MAX_BOXES} boxes", field)
        if kind == b"hdlr":
            handler = data[start + 8 : start + 12]
        elif kind in _COUNT_AT:
            at = start + _COUNT_AT[kind]
            samples = int.from_bytes(data[at : at + 4], "big")
            _check_samples(samples, kind != b"trun" and handler == b"vide", max_frames, field)


def _check_samples(samples: int, is_video: bool, max_frames: int, field: str) -> None:
    if is_video and samples > max_frames:
        raise TooLarge(f"the video has {samples} frames; at most {max_frames} are taken", field)
    if samples > MAX_OTHER_SAMPLES:
        raise TooLarge(f"the video has a track of {samples} samples; at most {MAX_OTHER_SAMPLES} are taken", field)


def _boxes(data: bytes, start: int, end: int, field: str, depth: int = 0) -> Iterator[Box]:
    """ISO/IEC 14496-12: size, kind, content; those that hold others are entered."""
    while start + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, start)
        head = 8
        if size == 1 and start + 16 <= end:
            size, head = struct.unpack_from(">Q", data, start + 8)[0], 16
        elif size == 0:  # to the end
            size = end - start
        if size < head or start + size > end:
            raise InvalidRequest("the video is truncated or damaged", field)
        yield kind, start + head, start + size
        if kind in _PARENTS and depth < MAX_DEPTH:
            yield from _boxes(data, start + head, start + size, field, depth + 1)
        start += size


def _is_whole_webm(data: bytes) -> bool:
    """RFC 8794: a header, then one segment. That of a live stream has no size."""
    header, start = _vint(data, 4)
    segment = start + (header or 0)
    if data[segment : segment + 4] != _SEGMENT:
        return False
    size, start = _vint(data, segment + 4)
    return size is None or start + size <= len(data)


def _vint(data: bytes, at: int) -> tuple[int | None, int]:
    """A number of variable length, None where it says that it is unknown, and where it ends."""
    first = data[at] if at < len(data) else 0
    length = 9 - first.bit_length()
    value = int.from_bytes(data[at : at + length], "big") & ((1 << 7 * length) - 1)
    return (None if value == (1 << 7 * length) - 1 else value), at + length
