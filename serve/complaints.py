"""pydantic's errors in plain words: which field, what is wrong with it, what it was, and the name that was meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from pydantic import BaseModel

from raydiance.serve.places import Place, locate

MAX_SHOWN = 80
MAX_LISTED = 8
Kind = Literal["unknown", "missing", "invalid"]

# pydantic's type of an error -> what is said of the field; braces are filled from the error's context
REASONS: Final[Mapping[str, str]] = {
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be an integer",
    "int_parsing": "must be an integer",
    "int_from_float": "must be an integer",
    "int_parsing_size": "must be an integer of fewer digits",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "string_type": "must be a string",
    "string_unicode": "must be a string of valid UTF-8",
    "string_too_short": "takes at least {min_length} characters",
    "string_too_long": "takes at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "union_tag_invalid": "must be {expected_tags}",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "too_short": "needs at least {min_length}",
    "too_long": "takes at most {max_length}",
    "dict_type": "must be a mapping of names to values",
    "model_type": "must be a mapping of names to values",
    "model_attributes_type": "must be a mapping of names to values",
    "none_required": "must be left out",
}
UNFORESEEN: Final = "cannot be taken as it is"
UNKNOWN: Final = ("extra_forbidden", "invalid_key")
CHOICES: Final = ("expected", "expected_tags")
MAPPINGS: Final = ("dict_type", "model_type", "model_attributes_type")
LENGTHS: Final = ("string_too_short", "string_too_long", "too_short", "too_long")

_SECRET = re.compile(r"secret|passw|token|api_key", re.IGNORECASE)
_CREDENTIALS = (
    (re.compile(r"://\S*@"), "://***@"),
    (re.compile(r"((?:secret|pass|token|key|signature)\w*=)[^&\s]+", re.IGNORECASE), r"\1***"),
    (re.compile(r"whsec_\S+"), "whsec_***"),
)


@dataclass(frozen=True)
class Complaint:
    """`param` is the field's path; empty where the whole is meant. `str()` is the sentence."""

    kind: Kind
    param: str
    reason: str
    got: str = ""

    def __str__(self) -> str:
        return f"{self.reason} (got {self.got})" if self.got else self.reason


def complaints(
    errors: Iterable[Mapping[str, Any]],
    model: type[BaseModel] | None = None,
    *,
    what: str = "parameter",
    also: Collection[str] = (),
    skip: int = 0,
) -> list[Complaint]:
    """One for each field.

    Args:
        errors: of `ValidationError.errors()`.
        model: that was validated.
        what: a field is called here: parameter, option.
        also: names that are known beside the model's fields.
        skip: leading parts of each location that are no fields (FastAPI's `query`).
    """
    found: dict[str, Complaint] = {}
    for error in _merged(errors, model, skip):
        place: Place = error["place"]
        complaint = _unknown(place, what, also) if error["type"] in UNKNOWN else _complaint(error, place)
        found.setdefault(f"{complaint.kind} {complaint.param}", complaint)
    return list(found.values())


def shown(value: object) -> str:
    """The value as an error message may carry it: short, no password in it, and of a list or mapping only the kind."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and abs(value) >= 10**MAX_SHOWN:
        return f"a number of more than {MAX_SHOWN} digits"
    if isinstance(value, str | bytes | int | float):
        text = repr(value[: 10 * MAX_SHOWN] if isinstance(value, str | bytes) else value)
        for pattern, instead in _CREDENTIALS:
            text = pattern.sub(instead, text)
        return shorten(text)
    return kind_of(value)


def kind_of(value: object) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "a mapping"}
    return names.get(type(value), f"a value of type {type(value).__name__}")


def shorten(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def nearest(name: str, known: Collection[str]) -> str | None:
    """The known name that was probably meant: spelled alike, or the only one that `name` is a part of."""
    if alike := difflib.get_close_matches(name, known, n=1, cutoff=0.65):
        return alike[0]
    holding = [k for k in known if f"_{name}_" in f"_{k}_"]
    return holding[0] if len(holding) == 1 else None


def _merged(errors: Iterable[Mapping[str, Any]], model: type[BaseModel] | None, skip: int) -> list[dict[str, Any]]:
    """Each error with its place; the choices of all branches of a union are those of one error."""
    merged: list[dict[str, Any]] = []
    choices: dict[tuple[str, ...], dict[str, Any]] = {}
    for error in errors:
        context = {k: _choices(v) if k in CHOICES else v for k, v in (error.get("ctx") or {}).items()}
        own = {**error, "ctx": context, "place": locate(model, error["loc"][skip:])}
        earlier = choices.setdefault(own["place"].names, own) if error["type"] == "literal_error" else own
        if earlier is own:
            merged.append(own)
        else:
            earlier["ctx"]["expected"] = [*earlier["ctx"].get("expected", []), *context.get("expected", [])]
    return merged


def _choices(text: str) -> list[str]:
    """Of pydantic's `'a', 'b' or 'c'`."""
    return re.findall(r"'([^']*)'", text) or [text]


def _complaint(error: Mapping[str, Any], place: Place) -> Complaint:
    kind, context, value, path = error["type"], error["ctx"], error.get("input"), place.path
    if kind == "missing":
        return Complaint("missing", path, f"{shorten(path)} is required")
    if kind.startswith("union_tag_"):
        path = ".".join((*place.names, context.get("discriminator", "type").strip("'")))
        value = context.get("tag")
        if kind == "union_tag_not_found":
            return Complaint("missing", path, f"{shorten(path)} is required")
    if kind in ("value_error", "assertion_error") and str(context.get("error", "")):
        reason = _sentence(path, str(context["error"]))
        return _with_value(Complaint("invalid", path, reason), "" if isinstance(value, dict | list) else shown(value))
    reason = _fill(REASONS.get(kind, UNFORESEEN), context)
    got = kind_of(value) if kind in MAPPINGS else _length(value) if kind in LENGTHS else shown(value)
    if place.is_key:
        reason = f"the name {shown(value)} {reason}"
        return Complaint("invalid", path, f"{shorten(path)}: {reason}" if path else reason)
    return _with_value(Complaint("invalid", path, f"{shorten(path) or 'this'} {reason}"), got)


def _unknown(place: Place, what: str, also: Collection[str]) -> Complaint:
    """Without its value: an unknown name may be a misspelled secret's."""
    known = [*place.siblings, *(also if len(place.names) == 1 else ())]
    meant = nearest(place.names[-1], known) if place.names else None
    hint = f"; did you mean '{meant}'?" if meant else ""
    if not meant and 0 < len(known) <= MAX_LISTED:
        hint = f"; known: {', '.join(known)}"
    return Complaint("unknown", shorten(place.path), f"unknown {what} '{shorten(place.path)}'{hint}")


def _sentence(path: str, text: str) -> str:
    """Of a validator's own words; most of them name the field already."""
    last = path.rpartition(".")[2]
    if not path or text.startswith((path, f"{last} ")):
        return text
    return f"{shorten(path)} {text}" if text.startswith(("must ", "takes ")) else f"{shorten(path)}: {text}"


def _with_value(complaint: Complaint, got: str) -> Complaint:
    return complaint if _SECRET.search(complaint.param) else replace(complaint, got=got)


def _length(value: object) -> str:
    return str(len(value)) if isinstance(value, str | bytes | list | dict | tuple) else kind_of(value)


def _fill(reason: str, context: Mapping[str, Any]) -> str:
    try:
        return reason.format_map({k: _limit(v) for k, v in context.items()})
    except KeyError:  # of another version of pydantic
        return UNFORESEEN


def _limit(value: Any) -> str:
    if isinstance(value, list):
        *most, last = map(str, value)
        return f"{', '.join(most)} or {last}" if most else last
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)
