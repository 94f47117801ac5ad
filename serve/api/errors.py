"""The one place where exceptions become HTTP: OpenAI's error body, whatever was raised."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from raydiance.serve.api.validation import from_errors
from raydiance.serve.complaints import shorten
from raydiance.serve.errors import (
    Conflict,
    GenerationFailed,
    RaydianceError,
    TooManyRequests,
    TooSlow,
    Unauthorized,
    Unavailable,
)

RETRY_AFTER_S = 2
CODES = {404: "not_found", 405: "method_not_allowed"}


class TimedOut(RaydianceError):
    """A synchronous request waited longer than `limits.sync_timeout_s`; its job was cancelled."""

    status: ClassVar[int] = 504
    default_code: ClassVar[str] = "timeout"


# trying again would give the same answer; the openai client retries 409 and 5xx unless told not to
NOT_WORTH_RETRYING = (Conflict, GenerationFailed, TimedOut)


def error_response(error: RaydianceError) -> JSONResponse:
    headers = {}
    if isinstance(error, TooManyRequests):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    elif isinstance(error, Unavailable):
        headers["retry-after"] = str(RETRY_AFTER_S)
    elif isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    elif isinstance(error, TooSlow):
        headers["connection"] = "close"  # the rest of the body is not waited for
    elif isinstance(error, NOT_WORTH_RETRYING):
        headers["x-should-retry"] = "false"
    return JSONResponse({"error": error.to_dict()}, error.status, headers)


def internal_error() -> RaydianceError:
    """What a client is told about an error that nobody foresaw; the log has the rest."""
    return RaydianceError("the server made an error; its log names the request", code="internal_error")


def install(app: FastAPI) -> None:
    @app.exception_handler(RaydianceError)
    async def ours(_: Request, error: RaydianceError) -> JSONResponse:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def parameters(request: Request, error: RequestValidationError) -> JSONResponse:
        return error_response(from_errors(error.errors(), _query_model(request), skip=1))

    @app.exception_handler(HTTPException)
    async def routing(request: Request, error: HTTPException) -> JSONResponse:
        path = shorten(request.url.path)
        known = {404: f"there is no {path}", 405: f"{path} takes no {request.method}"}
        body = {
            "message": known.get(error.status_code, error.detail),
            "type": "invalid_request_error",
            "param": None,
            "code": CODES.get(error.status_code, "http_error"),
        }
        return JSONResponse({"error": body}, error.status_code, error.headers)


def _query_model(request: Request) -> type[BaseModel] | None:
    """What the request's route reads its query into."""
    route = request.scope.get("route")
    found = [p.field_info.annotation for p in route.dependant.query_params] if isinstance(route, APIRoute) else []
    return next((m for m in found if isinstance(m, type) and issubclass(m, BaseModel)), None)


@contextmanager
def wire_names(names: Mapping[str, str]) -> Iterator[None]:
    """Errors of the native request name the field as the client of this route wrote it.

    Args:
        names: native field -> wire field; `inputs.` stands for all that lies below `inputs`.
    """
    try:
        yield
    except RaydianceError as e:
        if e.param is not None:
            e.param = names.get(e.param) or names.get(e.param.partition(".")[0] + ".") or e.param
        raise
