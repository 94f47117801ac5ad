"""Server-sent events: numbered, kept alive by comments, and with an error as the last word when one occurs."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from raydiance.serve.api.errors import internal_error
from raydiance.serve.errors import InvalidRequest, RaydianceError

log = logging.getLogger("ray.serve")
T = TypeVar("T")
HEARTBEAT_S = 10.0
HEARTBEAT: Final = b": alive\n\n"
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
MAX_ID = 2**63 - 1


def encode(event: str, data: Mapping[str, Any], event_id: int | None = None) -> bytes:
    prefix = "" if event_id is None else f"id: {event_id}\n"
    return f"{prefix}event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


class EventStream(StreamingResponse):
    """Args:
    closed: is called once, however the stream ends: to its end, cut off, or before its first frame.
    """

    def __init__(self, frames: AsyncIterator[bytes], closed: Callable[[], None] | None = None) -> None:
        super().__init__(_guarded(frames), media_type="text/event-stream", headers=HEADERS)
        self._closed = closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self._closed is not None:
                self._closed()


async def _guarded(frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The status is long sent when a stream fails: the error goes out as an event, which the openai client raises."""
    try:
        async for frame in frames:
            yield frame
    except RaydianceError as e:
        yield encode("error", {"error": e.to_dict()})
    except Exception:
        log.exception("an event stream failed")
        yield encode("error", {"error": internal_error().to_dict()})


async def with_heartbeats(source: AsyncIterator[T], every_s: float) -> AsyncIterator[T | None]:
    """Yields None whenever the source has been silent for `every_s` seconds."""
    waiting: asyncio.Future[T] | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(anext(source))
            done, _ = await asyncio.wait({waiting}, timeout=every_s)
            if not done:
                yield None
                continue
            try:
                item = waiting.result()
            except StopAsyncIteration:
                return
            waiting = None
            yield item
    finally:
        if waiting is not None:
            waiting.cancel()


def last_event_id(header: str | None, query: int | None) -> int:
    """Where a reader goes on. A browser that reconnects sends the header beside its old URL, so the header wins."""
    if header is None or header == "":
        return query or 0
    if not header.isdecimal() or len(header) > 19 or int(header) > MAX_ID:
        raise InvalidRequest(f"Last-Event-ID={header[:40]!r} must be an integer from 0 to {MAX_ID}", "Last-Event-ID")
    return int(header)
