"""Bodies of any bytes: they are read, or refused with one of our errors; nothing else ever comes out."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from raydiance.serve.api.body import Body, read_body
from raydiance.serve.edge_config import LimitsConfig
from raydiance.serve.errors import InvalidRequest, TooLarge, UnsupportedMedia

FAST = settings(max_examples=60, deadline=None)
names = st.text("abcdefgh_", min_size=1, max_size=8)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
datas = st.binary(min_size=1, max_size=99)
PIECES = [b"--b", b"\r\n", b"--", b"Content-Disposition: form-data", b'; name="a"', b'; filename="b"', b"x"]
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


def read(content: bytes, content_type: str, chunk: int = 7) -> Body:
    pieces = [content[i : i + chunk] for i in range(0, len(content), chunk)] or [b""]
    messages = [{"type": "http.request", "body": p, "more_body": i < len(pieces) - 1} for i, p in enumerate(pieces)]
    waiting = iter(messages)

    async def receive() -> Any:
        return next(waiting)

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", content_type.encode())]}
    return asyncio.run(read_body(Request(scope, receive), LimitsConfig(max_image_bytes=1024)))


def read_or_refuse(content: bytes, content_type: str) -> None:
    with suppress(InvalidRequest, UnsupportedMedia, TooLarge):
        read(content, content_type)


@FAST
@given(st.binary(max_size=200), st.sampled_from(["application/json", "application/x-www-form-urlencoded", "text/css"]))
def test_any_bytes(content: bytes, content_type: str) -> None:
    read_or_refuse(content, content_type)


@FAST
@given(st.lists(st.sampled_from(PIECES), max_size=20))
def test_any_multipart(pieces: list[bytes]) -> None:
    read_or_refuse(b"".join(pieces), "multipart/form-data; boundary=b")


@FAST
@given(st.dictionaries(names, values, max_size=4))
def test_json_comes_through(fields: dict[str, Any]) -> None:
    assert read(json.dumps(fields).encode(), "application/json; charset=utf-8") == Body(fields)


@FAST
@given(st.dictionaries(names, texts, min_size=1, max_size=4), st.dictionaries(names, datas, max_size=4))
def test_forms_come_through(fields: dict[str, str], files: dict[str, bytes]) -> None:
    parts: Any = [*((k, (None, v)) for k, v in fields.items()), *((k, ("a.png", v)) for k, v in files.items())]
    request = httpx.Request("POST", "http://host/", files=parts)
    expected = Body(dict(fields), {k: [v] for k, v in files.items()})
    assert read(request.read(), request.headers["content-type"]) == expected
    assert read(urlencode(fields).encode(), "application/x-www-form-urlencoded").fields == fields


def test_names_with_brackets() -> None:
    parts = [("a[]", "1"), ("a[]", "2"), ("b[c]", "3"), ("b[d]", "4"), ("e", "5")]
    body = read(urlencode(parts).encode(), "application/x-www-form-urlencoded")
    assert body.fields == {"a": ["1", "2"], "b": {"c": "3", "d": "4"}, "e": "5"}


def test_a_file_field_that_a_browser_left_empty() -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="image"; filename=""\r\n\r\n\r\n--b--\r\n'
    assert read(part, "multipart/form-data; boundary=b") == Body({}, {})
