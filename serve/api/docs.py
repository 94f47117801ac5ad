"""The OpenAPI page: request bodies are read by hand (JSON or form), so their schemas are added by hand."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from raydiance.serve.api.fields import REPEATED
from raydiance.serve.api.middleware import OPEN_PATHS
from raydiance.serve.api.schemas import (
    GroupCreation,
    ImageEdit,
    ImageGeneration,
    VideoCreation,
    VideoEdit,
    VideoExtension,
    VideoRemix,
)
from raydiance.serve.api.views import ErrorBody
from raydiance.serve.request import GenerationRequest

Responses = dict[int | str, dict[str, Any]]
BODIES: Final[tuple[type[BaseModel], ...]] = (
    GenerationRequest,
    ImageGeneration,
    ImageEdit,
    VideoCreation,
    VideoEdit,
    VideoExtension,
    VideoRemix,
    GroupCreation,
)
KEY_SCHEME: Final = "Bearer"
REF: Final = "#/components/schemas/{model}"
EVENT_RESPONSES: Final[Responses] = {200: {"description": "the events", "content": {"text/event-stream": {}}}}
FILE_RESPONSES: Final[Responses] = {
    200: {"description": "the file", "content": {"application/octet-stream": {}}},
    206: {"description": "the part of it that Range asks for"},
    304: {"description": "If-None-Match names the file that is there"},
    409: {"model": ErrorBody, "description": "not finished"},
    416: {"model": ErrorBody, "description": "Range begins behind its end"},
}
IMAGE_RESPONSES: Final[Responses] = {
    200: {"description": "the images; with stream=true, their events", "content": {"text/event-stream": {}}},
    "4XX": {"model": ErrorBody},
    500: {"model": ErrorBody, "description": "the generation failed"},
    504: {"model": ErrorBody, "description": "it took longer than limits.sync_timeout_s"},
}
DESCRIPTION: Final = """\
Image and video diffusion models, one denoising step at a time.

`/v1/images` and `/v1/videos` speak to an unmodified OpenAI client; `/v1/jobs` is the native way in, for both.
Every POST takes JSON or a form. A parameter that cannot be honoured is refused by name, never ignored.
"""


def body_of(model: type[BaseModel], *files: str, required: str | None = None) -> dict[str, Any]:
    """`openapi_extra` of a route whose body is `model`; `files` may be sent beside it, in JSON as URLs."""
    content = {
        "application/json": {"schema": _with(model, files, required, "uri")},
        "multipart/form-data": {"schema": _with(model, files, required, "binary")},
    }
    return {"requestBody": {"required": True, "content": content}}


def _with(model: type[BaseModel], files: tuple[str, ...], required: str | None, form: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"$ref": REF.format(model=model.__name__)}
    if not files:
        return schema
    one = {"type": "string", "format": form}
    fields = {name: {"anyOf": [one, {"type": "array", "items": one}]} if name in REPEATED else one for name in files}
    return {
        "allOf": [
            schema,
            {"type": "object", "properties": fields, **({} if required is None else {"required": [required]})},
        ]
    }


def install(app: FastAPI, *, has_keys: bool) -> None:
    """Args:
    has_keys: whether requests need one of the server's keys; the page then says so, and can send one.
    """
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = generate()
            _, bodies = models_json_schema([(model, "validation") for model in BODIES], ref_template=REF)
            schema["components"]["schemas"].update(bodies["$defs"])
            if has_keys:
                _secure(schema)
        return generate()

    app.openapi = openapi  # type: ignore[method-assign]


def _secure(schema: dict[str, Any]) -> None:
    schema["components"]["securitySchemes"] = {
        KEY_SCHEME: {"type": "http", "scheme": "bearer", "description": "one of the server's API keys"}
    }
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            operation["security"] = [] if path in OPEN_PATHS else [{KEY_SCHEME: []}]
