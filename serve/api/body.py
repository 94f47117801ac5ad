"""A POST body, whatever its wire format (JSON, multipart, urlencoded), as fields and files."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from python_multipart.multipart import parse_options_header
from starlette.requests import Request

from raydiance.serve.api.multipart import MAX_FIELDS, Part, read_parts
from raydiance.serve.complaints import shorten
from raydiance.serve.edge_config import LimitsConfig
from raydiance.serve.errors import InvalidRequest, UnsupportedMedia

MAX_DEPTH = 32
ACCEPTED = "application/json, multipart/form-data or application/x-www-form-urlencoded"
# `name`, `name[]` (one of a list) or `name[key]` (one of a mapping)
NAME = re.compile(r"(?P<name>[^\[\]]+)(?:\[(?P<key>[^\[\]]*)\])?")


@dataclass(frozen=True)
class Body:
    """Args:
    fields: JSON values, or strings where the body was a form.
    files: uploaded bytes by field name, in the order of their arrival.
    """

    fields: dict[str, Any]
    files: dict[str, list[bytes]] = field(default_factory=dict)


async def read_body(request: Request, limits: LimitsConfig) -> Body:
    """Raises InvalidRequest (malformed), UnsupportedMedia, TooLarge."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind == b"application/json":
        body = Body(_parse_json(await request.body()))
    elif kind == b"multipart/form-data":
        parts = await read_parts(
            request.stream(),
            options.get(b"boundary"),
            max_image_bytes=limits.max_image_bytes,
            max_video_bytes=limits.max_video_bytes,
        )
        body = _from_parts(parts)
    elif kind == b"application/x-www-form-urlencoded":
        body = _from_parts(_parse_query(await request.body()))
    else:
        given = kind.decode("latin-1")
        raise UnsupportedMedia(f"content-type is {shorten(repr(given)) if given else 'missing'}; send {ACCEPTED}")
    _check_values(body.fields)
    return body


def _parse_json(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(_decode(raw), object_pairs_hook=_unique_keys)
    except RecursionError:
        raise InvalidRequest(f"the JSON body is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as e:  # JSONDecodeError, and integers of more digits than Python reads
        raise InvalidRequest(f"the body is not valid JSON: {e}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"the JSON body must be an object, not {type(value).__name__}", code="invalid_json")
    return value


def _decode(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as e:
        raise InvalidRequest(f"the body is not valid UTF-8: byte {e.start} is 0x{raw[e.start]:02x}") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise InvalidRequest(f"'{shorten(key)}' is given twice", shorten(key))
        values[key] = value
    return values


def _parse_query(raw: bytes) -> list[Part]:
    try:
        pairs = parse_qsl(_decode(raw), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError as e:
        raise InvalidRequest(f"the urlencoded body is malformed: {e}") from None
    return [Part(name, value) for name, value in pairs]


def _from_parts(parts: list[Part]) -> Body:
    body = Body({})
    for part in parts:
        match = NAME.fullmatch(part.name)
        if match is None:
            raise InvalidRequest(f"'{shorten(part.name)}' is not a field name", shorten(part.name))
        name, key = match["name"], match["key"]
        if isinstance(part.value, bytes):
            body.files.setdefault(name if not key else part.name, []).append(part.value)
        elif key is None:
            _put(body.fields, name, part.value, name)
        elif key == "":
            _container(body.fields, name, list).append(part.value)
        else:
            _put(_container(body.fields, name, dict), key, part.value, part.name)
    return body


def _container(fields: dict[str, Any], name: str, kind: type[Any]) -> Any:
    found = fields.setdefault(name, kind())
    if not isinstance(found, kind):
        raise InvalidRequest(f"'{shorten(name)}' is given in two forms", shorten(name))
    return found


def _put(target: dict[str, Any], key: str, value: str, name: str) -> None:
    if key in target:
        raise InvalidRequest(f"'{shorten(name)}' is given twice", shorten(name))
    target[key] = value


def _check_values(fields: dict[str, Any]) -> None:
    """No text that a database cannot keep (NUL, lone surrogates), no NaN or infinity, no nesting without end."""
    waiting: list[tuple[str, Any, int]] = [("", fields, 0)]
    while waiting:
        path, value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise InvalidRequest(f"the JSON body is nested deeper than {MAX_DEPTH} levels", shorten(path))
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidRequest(f"{shorten(path)}={value} is not a finite number", shorten(path))
        if isinstance(value, str):
            _check_text(path, value)
        elif isinstance(value, list):
            waiting += [(f"{path}.{i}", item, depth + 1) for i, item in enumerate(value)]
        elif isinstance(value, dict):
            for key, item in value.items():
                _check_text(path or "the body", key)
                waiting.append((f"{path}.{key}" if path else key, item, depth + 1))


def _check_text(path: str, text: str) -> None:
    if "\0" in text:
        raise InvalidRequest(f"{shorten(path)} holds a NUL character", shorten(path))
    if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
        raise InvalidRequest(f"{shorten(path)} holds a lone surrogate, which is not text", shorten(path))
