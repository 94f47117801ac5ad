"""Wire values -> a pydantic model; pydantic's complaints -> one InvalidRequest naming field, value and limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from raydiance.serve.errors import InvalidRequest

M = TypeVar("M", bound=BaseModel)
MAX_SHOWN = 80
MAX_COMPLAINTS = 3
INT_LIMIT = 2**63


def validate(model: type[M], values: Mapping[str, Any]) -> M:
    """A field that is null counts as left out. Raises InvalidRequest."""
    try:
        found = model.model_validate({k: v for k, v in values.items() if v is not None})
    except ValidationError as e:
        raise from_errors([dict(error) for error in e.errors()]) from None
    for name in model.model_fields:
        value = getattr(found, name)
        if isinstance(values.get(name), bool) and not isinstance(value, bool):
            raise InvalidRequest(f"{name}: must be a number (got {values[name]})", name)
        if isinstance(value, int) and not -INT_LIMIT <= value < INT_LIMIT:
            raise InvalidRequest(f"{name}={shown(value)} does not fit 64 bits", name)
    return found


def from_errors(errors: Iterable[Mapping[str, Any]], *, skip: int = 0) -> InvalidRequest:
    """Args:
    skip: leading parts of each location to drop (FastAPI's `query`, `path`).
    """
    complaints = [_complaint(e, ".".join(str(p) for p in e["loc"][skip:])) for e in errors]
    message = "; ".join(text for text, _, _ in complaints[:MAX_COMPLAINTS])
    _, param, code = complaints[0]
    return InvalidRequest(message, param or None, code)


def _complaint(error: Mapping[str, Any], param: str) -> tuple[str, str, str]:
    match error["type"]:
        case "extra_forbidden":
            return f"unknown parameter '{shorten(param)}'", shorten(param), "unknown_parameter"
        case "missing":
            return f"{param} is required", param, "missing_required_parameter"
    reason = error["msg"].removeprefix("Value error, ")
    name = f"{param}: " if param else ""
    return f"{name}{reason} (got {shown(error.get('input'))})", param, "invalid_value"


def shown(value: object) -> str:
    """The value as an error message may carry it: short."""
    if isinstance(value, int) and abs(value) >= 10**MAX_SHOWN:
        return "a number of more than 80 digits"
    return shorten(repr(value))


def shorten(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
