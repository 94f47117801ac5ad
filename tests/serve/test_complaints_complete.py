"""What pydantic may say of our schemas, read from the schemas themselves: none of it lacks a case."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from tests.serve.test_complaints import CASES

from raydiance.serve.api import schemas
from raydiance.serve.config import Config
from raydiance.serve.request import GenerationRequest

MODELS: list[type[BaseModel]] = [
    GenerationRequest,
    *(
        m
        for m in vars(schemas).values()
        if isinstance(m, type) and issubclass(m, schemas.Wire) and m is not schemas.Wire
    ),
    Config,
]


def test_the_cases_are_all_that_our_schemas_can_produce() -> None:
    possible = set[str]().union(
        *(producible(node) for model in MODELS for node in nodes(model.__pydantic_core_schema__))
    )
    assert possible - {case[2] for case in CASES} == set()
    assert {"int_parsing", "literal_error", "union_tag_invalid", "too_short", "value_error"} <= possible


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema within a core schema."""
    if isinstance(schema, dict):
        if isinstance(schema.get("type"), str):
            yield schema
        for key, value in schema.items():
            if key not in ("metadata", "serialization", "ref"):
                yield from nodes(value)
    elif isinstance(schema, list | tuple):
        for value in schema:
            yield from nodes(value)


SCALARS = {
    "bool": {"bool_type", "bool_parsing"},
    "int": {"int_type", "int_parsing", "int_from_float", "int_parsing_size"},
    "float": {"float_type", "float_parsing"},
    "str": {"string_type", "string_unicode"},
    "literal": {"literal_error"},
    "list": {"list_type"},
    "dict": {"dict_type"},
    "model": {"model_type"},
    "tagged-union": {"union_tag_invalid", "union_tag_not_found", "model_attributes_type"},
    "function-before": {"value_error"},
    "function-after": {"value_error"},
}
NONE_OF_THEIR_OWN = {
    *("any", "nullable", "default", "union", "definitions", "definition-ref", "model-field", "no-info", "with-info"),
    *("lax-or-strict", "json-or-python", "is-instance"),  # of SecretStr: whatever is no string is refused as that
}
LIMITS = {
    "gt": "greater_than",
    "ge": "greater_than_equal",
    "lt": "less_than",
    "le": "less_than_equal",
    "multiple_of": "multiple_of",
    "pattern": "string_pattern_mismatch",
}


def producible(node: dict[str, Any]) -> set[str]:
    """Error types of one schema alone. An unknown kind of schema is a KeyError: say here what it can produce."""
    kind = node["type"]
    if kind in NONE_OF_THEIR_OWN:
        return set()
    if kind == "model-fields":
        required = {"missing"} if any(_is_required(f) for f in node["fields"].values()) else set()
        return {"extra_forbidden", "invalid_key"} | required
    of = "string" if kind == "str" else ""
    lengths = {
        f"{of}_too_{word}".strip("_") for word, key in (("short", "min_length"), ("long", "max_length")) if key in node
    }
    is_finite = kind == "float" and node.get("allow_inf_nan") is False
    return (
        SCALARS[kind]
        | lengths
        | {e for key, e in LIMITS.items() if key in node}
        | ({"finite_number"} if is_finite else set())
    )


def _is_required(field: dict[str, Any]) -> bool:
    return bool(field["schema"]["type"] != "default")
