"""Where in a pydantic model an error is: its location without the branches of unions, and the names known there."""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

_LABEL = re.compile(
    r"[a-z-]+\[.*\]", re.DOTALL
)  # how pydantic calls a branch: literal['png'], function-after[f(), int]


@dataclass(frozen=True)
class Place:
    """Args:
    names: of the fields that lead there, indices among them.
    siblings: fields that the innermost model has; empty where it is not known.
    is_key: whether the error is in the name itself, not in what it names.
    """

    names: tuple[str, ...]
    siblings: tuple[str, ...] = ()
    is_key: bool = False

    @property
    def path(self) -> str:
        return ".".join(self.names)


def locate(model: type[BaseModel] | None, loc: Sequence[str | int]) -> Place:
    """Args:
    model: that was validated; without it only what is certainly a branch's label is left out.
    """
    here: list[Any] = [] if model is None else [model]
    names: list[str] = []
    siblings: tuple[str, ...] = ()
    for part in loc:
        if part == "[key]":
            return Place(tuple(names[:-1]), is_key=True)
        models = [t for t in here if _is_model(t)]
        if len(models) > 1 and (chosen := [m for m in models if part in _tags(m)]):
            here = chosen
            continue
        below = [inner for t in here for inner in _below(t, part)]
        if below or not _is_label(part, here):
            names.append(str(part))
            siblings = tuple(dict.fromkeys(name for m in models for name in m.model_fields))
            here = below
    return Place(tuple(names), siblings)


def _is_label(part: str | int, here: list[Any]) -> bool:
    is_leaf = bool(here) and not any(_is_model(t) or get_origin(t) in (list, tuple, dict) for t in here)
    return isinstance(part, str) and (is_leaf or _LABEL.fullmatch(part) is not None)


def _is_model(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, BaseModel)


def _tags(model: type[BaseModel]) -> set[Any]:
    """By which pydantic may call a model in a union: its name, or a value of a field that has one only."""
    literals = [f.annotation for f in model.model_fields.values() if get_origin(f.annotation) is Literal]
    return {model.__name__, *(get_args(a)[0] for a in literals if len(get_args(a)) == 1)}


def _below(found: Any, part: str | int) -> list[Any]:
    """The types of what `part` names in a value of the type `found`; none where there is no such thing."""
    if _is_model(found):
        fields: Mapping[Any, Any] = found.model_fields
        return _branches(fields[part].annotation) if part in fields else []
    origin, inner = get_origin(found), get_args(found)
    if origin in (list, tuple) and inner and isinstance(part, int):
        return _branches(inner[0])
    return _branches(inner[1]) if origin is dict else []


def _branches(annotation: Any) -> list[Any]:
    """A type without its metadata; the members of a union, but for None."""
    if get_origin(annotation) is Annotated:
        return _branches(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [branch for member in get_args(annotation) for branch in _branches(member)]
    return [] if annotation is types.NoneType else [annotation]
