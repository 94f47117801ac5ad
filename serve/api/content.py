"""A stored file as an HTTP response: ranges (RFC 9110), validators, and a name to save it under."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from raydiance.serve.errors import InvalidRequest, NotFound
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.job import Artifact

RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class Unsatisfiable(Exception):
    """The range begins behind the end of the file."""


def parse_range(header: str | None, size_bytes: int) -> tuple[int, int] | None:
    """Start and end (without the end) of what is asked for; None for the whole file.

    A header that is malformed or names several ranges is ignored, as RFC 9110 allows. Raises Unsatisfiable.
    """
    match = RANGE.fullmatch((header or "").replace(" ", ""))
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":
        length = int(match[2])
        if length == 0 or size_bytes == 0:
            raise Unsatisfiable
        return max(0, size_bytes - length), size_bytes
    start = int(match[1])
    last = int(match[2] or size_bytes)
    if match[2] and last < start:
        return None
    if start >= size_bytes:
        raise Unsatisfiable
    return start, min(last + 1, size_bytes)


async def file_response(request: Request, store: ArtifactStore, artifact: Artifact, name: str) -> Response:
    """Args:
    name: without suffix; what a browser saves the file as.
    """
    size = artifact.size_bytes
    etag = f'"{hashlib.sha256(f"{artifact.key}:{size}".encode()).hexdigest()[:32]}"'
    headers = {
        "accept-ranges": "bytes",
        "etag": etag,
        "cache-control": "private, no-cache",
        "content-disposition": f'inline; filename="{_file_name(name, artifact.key)}"',
        "x-content-type-options": "nosniff",
    }
    if _matches(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    fresh = request.headers.get("if-range") in (None, etag)
    try:
        part = parse_range(request.headers.get("range") if fresh else None, size)
    except Unsatisfiable:
        return _unsatisfiable(request.headers["range"], size)
    start, end = part or (0, size)
    status = 200 if part is None else 206
    if part is not None:
        headers["content-range"] = f"bytes {start}-{end - 1}/{size}"
    headers["content-length"] = str(end - start)
    if request.method == "HEAD" or size == 0:
        return Response(status_code=status, headers=headers, media_type=artifact.content_type)
    chunks = store.stream(artifact.key, start, end)
    try:
        first = await anext(chunks)  # before the status is sent: the file may have been swept
    except NotFound:
        raise NotFound("this content is no longer kept", "id") from None
    return StreamingResponse(_chain(first, chunks), status, headers, artifact.content_type)


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


def _file_name(name: str, key: str) -> str:
    suffix = key.rpartition(".")[2] if "." in key else "bin"
    return f"{UNSAFE.sub('_', name)}.{UNSAFE.sub('_', suffix)}"


def _matches(header: str | None, etag: str) -> bool:
    if header is None:
        return False
    return header.strip() == "*" or etag in (tag.strip().removeprefix("W/") for tag in header.split(","))


def _unsatisfiable(header: str, size: int) -> JSONResponse:
    error = InvalidRequest(f"range '{header[:80]}' is outside a file of {size} bytes", "Range", "range_not_satisfiable")
    headers = {"content-range": f"bytes */{size}", "accept-ranges": "bytes"}
    return JSONResponse({"error": error.to_dict()}, 416, headers)
