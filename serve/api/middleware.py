"""What every request passes, as plain ASGI so that streams stay streams: an id, a safety net, a key, limits."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from raydiance.serve.api.errors import error_response, internal_error
from raydiance.serve.errors import RaydianceError, TooLarge, TooSlow, Unauthorized

log = logging.getLogger("ray.serve")
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
MIN_BYTES_PER_S = 32 << 10
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
Authenticate = Callable[[bytes], Awaitable[str]]


class RequestScope:
    """Answers every request with an `x-request-id`, and what nobody foresaw with a 500 that tells nothing.

    An id that came with the request is kept for the log and not answered: the proxy in front that set it answers it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if request_id != given:
                    MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except ClientDisconnect:
            log.info("%s %s: the client went away (%s)", scope["method"], scope["path"], request_id)
        except Exception:
            log.exception("%s %s failed (%s)", scope["method"], scope["path"], request_id)
            if started:
                raise
            await error_response(internal_error())(scope, receive, sending)


class ApiKeys:
    """Tells whose request it is: `request.state.tenant`, None for the operator, where nobody is asked for a key.

    Args:
        authenticate: from a key to its tenant; raises Unauthorized. None: no keys are asked for.
    """

    def __init__(self, app: ASGIApp, authenticate: Authenticate | None) -> None:
        self._app = app
        self._authenticate = authenticate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or (self._authenticate and scope["path"] in OPEN_PATHS):
            await self._app(scope, receive, send)
            return
        tenant: str | None = None
        if self._authenticate is not None:
            kind, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
            is_bearer = kind.lower() == "bearer" or not key
            try:
                if not is_bearer:
                    raise Unauthorized("the API key is not known here: send 'Authorization: Bearer KEY'")
                tenant = await self._authenticate(key.strip().encode("latin-1"))
            except RaydianceError as e:
                await error_response(e)(scope, receive, send)
                return
        await self._app({**scope, "state": {**scope.get("state", {}), "tenant": tenant}}, receive, send)


class BodyLimit:
    """Refuses a body of more than `max_bytes`: by its declared length before it is read, or while it streams in."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        error = TooLarge(f"the body has more than {self._max_bytes} bytes (limits.max_body_bytes)")
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > self._max_bytes:
            await error_response(error)(scope, receive, send)
            return
        received = 0

        async def receiving() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise error
            return message

        await self._app(scope, receiving, send)


class BodyTimeout:
    """Refuses a body that stands still for `timeout_s`, or is waited for that long and a second per `MIN_BYTES_PER_S`.

    Only waiting counts: the time that the server takes for what has come is not the client's.
    """

    def __init__(self, app: ASGIApp, timeout_s: float) -> None:
        self._app = app
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        received = 0
        waited_s = 0.0
        is_over = False  # the body has come, or an answer is given without it

        async def sending(message: Message) -> None:
            nonlocal is_over
            is_over = True
            await send(message)

        async def receiving() -> Message:
            nonlocal received, waited_s, is_over
            if is_over:
                return await receive()
            left_s = self._timeout_s + received / MIN_BYTES_PER_S - waited_s
            began = time.monotonic()
            try:
                async with asyncio.timeout(min(self._timeout_s, left_s)):
                    message = await receive()
            except TimeoutError:
                raise self._refusal(received, waited_s + time.monotonic() - began) from None
            waited_s += time.monotonic() - began
            received += len(message.get("body", b""))
            is_over = not message.get("more_body", False)
            return message

        await self._app(scope, receiving, sending)

    def _refusal(self, received: int, waited_s: float) -> TooSlow:
        return TooSlow(
            f"the body comes too slowly: {received} bytes in {waited_s:.0f} s; it may pause for {self._timeout_s:g} s "
            f"(http.body_timeout_s), and take so long and 1 s per {MIN_BYTES_PER_S} bytes in all"
        )


class SimulatedMark:
    """Answers every request with `raydiance-simulated: true`: nothing here is generated."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["raydiance-simulated"] = "true"
            await send(message)

        await self._app(scope, receive, sending)
