"""Wire values -> a pydantic model; pydantic's complaints -> one InvalidRequest naming field, value and limit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from raydiance.serve.complaints import Kind, complaints, shown
from raydiance.serve.errors import InvalidRequest

M = TypeVar("M", bound=BaseModel)
MAX_COMPLAINTS = 3
INT_LIMIT = 2**63
CODES: Final[Mapping[Kind, str]] = {
    "unknown": "unknown_parameter",
    "missing": "missing_required_parameter",
    "invalid": "invalid_value",
}


def validate(model: type[M], values: Mapping[str, Any], *, also: Collection[str] = ()) -> M:
    """A field that is null counts as left out; `also` are fields that were taken before. Raises InvalidRequest."""
    try:
        found = model.model_validate({k: v for k, v in values.items() if v is not None})
    except ValidationError as e:
        raise from_errors([dict(error) for error in e.errors()], model, also=also) from None
    for name in model.model_fields:
        value = getattr(found, name)
        if isinstance(values.get(name), bool) and not isinstance(value, bool):
            raise InvalidRequest(f"{name} must be a number (got {shown(values[name])})", name)
        if isinstance(value, int) and not -INT_LIMIT <= value < INT_LIMIT:
            raise InvalidRequest(f"{name}={shown(value)} does not fit 64 bits", name)
    return found


def from_errors(
    errors: Iterable[Mapping[str, Any]],
    model: type[BaseModel] | None,
    *,
    also: Collection[str] = (),
    skip: int = 0,
) -> InvalidRequest:
    """The first few as one error; `also` and `skip` as in `complaints`."""
    found = complaints(errors, model, also=also, skip=skip)
    more = [f"and {len(found) - MAX_COMPLAINTS} more"] if len(found) > MAX_COMPLAINTS else []
    message = "; ".join([*map(str, found[:MAX_COMPLAINTS]), *more])
    return InvalidRequest(message, found[0].param or None, CODES[found[0].kind])
