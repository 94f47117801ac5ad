"""multipart/form-data, read as it streams in: text as strict UTF-8, files bounded while they arrive."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from raydiance.serve.complaints import shorten
from raydiance.serve.errors import InvalidRequest, TooLarge

MAX_FIELDS = 128
MAX_FILES = 16
VIDEO_FIELDS = ("video", "mask")


@dataclass(frozen=True)
class Part:
    """A form field; its value is bytes where it was a file."""

    name: str
    value: str | bytes


async def read_parts(
    stream: AsyncIterator[bytes], boundary: bytes | None, *, max_image_bytes: int, max_video_bytes: int
) -> list[Part]:
    """Raises InvalidRequest (malformed, or cut short), TooLarge (naming the field)."""
    if not boundary:
        raise InvalidRequest("the content-type multipart/form-data has no boundary")
    reader = _Reader(max_image_bytes, max_video_bytes)
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": reader.begin,
                "on_header_field": reader.header_field,
                "on_header_value": reader.header_value,
                "on_header_end": reader.header_end,
                "on_headers_finished": reader.headers_finished,
                "on_part_data": reader.data,
                "on_part_end": reader.end,
                "on_end": reader.finish,
            },
        )
        async for chunk in stream:
            parser.write(chunk)
    except FormParserError as e:
        raise InvalidRequest(f"the multipart body is malformed: {e}") from None
    if not reader.finished:
        raise InvalidRequest("the multipart body is cut short: its closing boundary is missing")
    return reader.parts


class _Reader:
    """The parser's callbacks; it hands over slices of what it was given."""

    def __init__(self, max_image_bytes: int, max_video_bytes: int) -> None:
        self.parts: list[Part] = []
        self.finished = False
        self._limits = {"max_image_bytes": max_image_bytes, "max_video_bytes": max_video_bytes}
        self._num_files = 0

    def begin(self) -> None:
        self._headers: dict[bytes, bytes] = {}
        self._name = ""
        self._is_file = False
        self._has_filename = False
        self._data = bytearray()
        self._field = b""
        self._value = b""

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def header_end(self) -> None:
        self._headers[self._field.lower()] = self._value
        self._field = self._value = b""

    def headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        name = options.get(b"name")
        if not name:
            raise InvalidRequest("a part of the multipart body has no name in its content-disposition")
        self._name = _text("a field's name", name)
        self._is_file = b"filename" in options
        self._has_filename = bool(options.get(b"filename"))
        self._num_files += self._is_file
        if self._num_files > MAX_FILES:
            raise TooLarge(f"more than {MAX_FILES} files were sent", shorten(self._name))
        if len(self.parts) >= MAX_FIELDS:
            raise TooLarge(f"more than {MAX_FIELDS} form fields were sent", shorten(self._name))

    def data(self, data: bytes, start: int, end: int) -> None:
        self._data += data[start:end]
        limit = "max_video_bytes" if self._name in VIDEO_FIELDS else "max_image_bytes"
        if self._is_file and len(self._data) > self._limits[limit]:
            raise TooLarge(
                f"the file in {shorten(self._name)} has more than {self._limits[limit]} bytes (limits.{limit})",
                shorten(self._name),
            )

    def end(self) -> None:
        if not self._is_file:
            self.parts.append(Part(self._name, _text(self._name, bytes(self._data))))
        elif self._data or self._has_filename:  # a browser's form sends an unnamed, empty file where none was chosen
            self.parts.append(Part(self._name, bytes(self._data)))

    def finish(self) -> None:
        self.finished = True


def _text(name: str, raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as e:
        raise InvalidRequest(
            f"{shorten(name)} is not valid UTF-8: byte {e.start} is 0x{raw[e.start]:02x}", shorten(name)
        ) from None
