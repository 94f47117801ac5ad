"""Every error of pydantic's that our schemas can produce, in plain words; and whatever else it may come to say."""

from __future__ import annotations

from typing import Any, Literal, get_args

import pydantic_core
import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from raydiance.serve.api import schemas
from raydiance.serve.complaints import REASONS, UNFORESEEN, complaints, nearest, shown
from raydiance.serve.config import Config
from raydiance.serve.request import GenerationRequest

RAW = (
    "Input",
    "Extra",
    "valid ",
    "permitted",
    "parse",
    "[",
    "tag",
    "instance",
    "literal",
    "function",
    "error",
)
G, C = GenerationRequest, Config
IMAGE = {"type": "image"}

CASES: list[tuple[type[BaseModel], Any, str, str, str]] = [
    # model, values, pydantic's type, field, message
    (G, {"audio": 3}, "bool_parsing", "audio", "audio must be true or false (got 3)"),
    (G, {"audio": []}, "bool_type", "audio", "audio must be true or false (got a list)"),
    (G, {"n": "many"}, "int_parsing", "n", "n must be an integer (got 'many')"),
    (G, {"n": [1]}, "int_type", "n", "n must be an integer (got a list)"),
    (G, {"n": 2.5}, "int_from_float", "n", "n must be an integer (got 2.5)"),
    (G, {"n": "1" * 5000}, "int_parsing_size", "n", f"n must be an integer of fewer digits (got '{'1' * 79}…)"),
    (G, {"seconds": "soon"}, "float_parsing", "seconds", "seconds must be a number (got 'soon')"),
    (G, {"seconds": {}}, "float_type", "seconds", "seconds must be a number (got a mapping)"),
    (G, {"strength": "nan"}, "finite_number", "strength", "strength must be a finite number (got 'nan')"),
    (G, {"seconds": 0}, "greater_than", "seconds", "seconds must be greater than 0 (got 0)"),
    (G, {"n": 0}, "greater_than_equal", "n", "n must be at least 1 (got 0)"),
    (schemas.JobContent, {"index": 10}, "less_than", "index", "index must be less than 10 (got 10)"),
    (G, {"seconds": 3601}, "less_than_equal", "seconds", "seconds must be at most 3600 (got 3601)"),
    (G, {"prompt": 5}, "string_type", "prompt", "prompt must be a string (got 5)"),
    (G, {"prompt": b"\xff"}, "string_unicode", "prompt", "prompt must be a string of valid UTF-8 (got b'\\xff')"),
    (G, {"webhook": "x" * 3000}, "string_too_long", "webhook", "webhook takes at most 2048 characters (got 3000)"),
    (
        C,
        {"models": [{"name": "a b"}]},
        "string_pattern_mismatch",
        "models.0.name",
        "models.0.name must match ^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$ (got 'a b')",
    ),
    (
        G,
        {"output": {"format": "gif"}},
        "literal_error",
        "output.format",
        "output.format must be png, webp, jpeg, mp4 or webm (got 'gif')",
    ),
    (
        G,
        {"inputs": [{"type": "sound"}]},
        "union_tag_invalid",
        "inputs.0.type",
        "inputs.0.type must be image, mask, video or text (got 'sound')",
    ),
    (G, {"inputs": [{}]}, "union_tag_not_found", "inputs.0.type", "inputs.0.type is required"),
    (G, {"inputs": 3}, "list_type", "inputs", "inputs must be a list (got 3)"),
    (C, {"models": []}, "too_short", "models", "models needs at least 1 (got 0)"),
    (G, {"inputs": [IMAGE] * 17}, "too_long", "inputs", "inputs takes at most 16 (got 17)"),
    (
        G,
        {"metadata": "x"},
        "dict_type",
        "metadata",
        "metadata must be a mapping of names to values (got a string)",
    ),
    (G, {"output": 3}, "model_type", "output", "output must be a mapping of names to values (got a number)"),
    (
        G,
        {"inputs": [3]},
        "model_attributes_type",
        "inputs.0",
        "inputs.0 must be a mapping of names to values (got a number)",
    ),
    (G, {"metadata": {1: "a"}}, "string_type", "metadata", "metadata: the name 1 must be a string"),
    (G, {"metadata": {"a": 1}}, "string_type", "metadata.a", "metadata.a must be a string (got 1)"),
    (G, {"inputs": [IMAGE]}, "missing", "inputs.0.source", "inputs.0.source is required"),
    (
        G,
        {"inputs": [{"type": "text", "text": 3}]},
        "string_type",
        "inputs.0.text",
        "inputs.0.text must be a string (got 3)",
    ),
    (
        G,
        {"inputs": [{**IMAGE, "source": {"ulr": "x", "b64": ""}}]},
        "extra_forbidden",
        "inputs.0.source.ulr",
        "unknown parameter 'inputs.0.source.ulr'; did you mean 'url'?",
    ),
    (
        G,
        {"output": {"quality": 3}},
        "extra_forbidden",
        "output.quality",
        "unknown parameter 'output.quality'; known: format, compression",
    ),
    (G, {"xyzzy": 1}, "extra_forbidden", "xyzzy", "unknown parameter 'xyzzy'"),
    (G, {"steps": 1}, "extra_forbidden", "steps", "unknown parameter 'steps'; did you mean 'num_inference_steps'?"),
    (G, {7: 1}, "invalid_key", "7", "unknown parameter '7'"),
    (
        G,
        {"inputs": [{**IMAGE, "source": {}}]},
        "value_error",
        "inputs.0.source",
        "inputs.0.source: give exactly one of url, b64, artifact",
    ),
    (
        G,
        {"metadata": {"a": "x" * 600}},
        "value_error",
        "metadata",
        "metadata takes at most 16 pairs, keys of 64 and values of 512 characters",
    ),
    (
        C,
        {"storage": {"database": "mysql://me:pass/word@host/db"}},
        "value_error",
        "storage.database",
        "storage.database must be sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME (got 'mysql://***@host/db')",
    ),
    (C, {"model": "a", "models": []}, "value_error", "", "give model or models, not both"),
    (C, {"denoiser": None}, "model_type", "denoiser", "denoiser must be a mapping of names to values (got null)"),
    (C, [], "model_type", "", "this must be a mapping of names to values (got a list)"),
]


def errors_of(model: type[BaseModel], values: Any) -> list[dict[str, Any]]:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(values)
    return [dict(error) for error in caught.value.errors()]


@pytest.mark.parametrize(("model", "values", "kind", "param", "message"), CASES, ids=[f"{c[2]}-{c[3]}" for c in CASES])
def test_errors(model: type[BaseModel], values: Any, kind: str, param: str, message: str) -> None:
    errors = errors_of(model, values)
    assert {error["type"] for error in errors} == {kind}
    [complaint] = complaints(errors, model)
    assert (complaint.param, str(complaint)) == (param, message)


@pytest.mark.parametrize("kind", get_args(pydantic_core.core_schema.ErrorType))
@pytest.mark.parametrize("context", [{}, None, {"error": ValueError(), "gt": 3}])
def test_no_error_is_too_strange(kind: str, context: Any) -> None:
    error = {
        "type": kind,
        "loc": ("size", "list[int]"),
        "msg": "Input should be RAW",
        "input": object(),
        "ctx": context,
    }
    [complaint] = complaints([error])
    assert "size" in str(complaint)
    assert "RAW" not in str(complaint)
    assert "list[int]" not in str(complaint)


def test_errors_of_later_versions() -> None:
    error = {"type": "moon_phase", "loc": ("size",), "msg": "Input should be RAW", "input": "x"}
    assert [str(c) for c in complaints([error])] == [f"size {UNFORESEEN} (got 'x')"]


def test_the_table_has_no_words_of_pydantics() -> None:
    assert set(REASONS) <= set(get_args(pydantic_core.core_schema.ErrorType))
    for *_, message in CASES:
        ours = message.replace("valid UTF-8", "").partition(" match ")[0]
        assert not [word for word in RAW if word in ours], message


class Left(BaseModel):
    model_config = ConfigDict(extra="forbid")

    side: Literal["left"]
    turns: int | Literal["many"] = 1


class Right(BaseModel):
    model_config = ConfigDict(extra="forbid")

    side: Literal["right"]
    turns: int | list[int] = 1

    @field_validator("turns")
    @classmethod
    def _few(cls, turns: Any) -> Any:
        if turns == 3:
            raise ValueError("must not be 3")
        return turns


class Unions(BaseModel):
    way: Left | Right = Field(union_mode="left_to_right")
    pairs: dict[str, list[int]] = {}
    couple: tuple[int, ...] = ()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"way": {"side": "right", "turns": "x"}},
            {"way.side must be left (got 'right')", "way.turns must be an integer"},
        ),
        ({"way": {"side": "right", "turns": 3}}, {"way.turns must not be 3 (got 3)"}),
        ({"way": {"side": "left", "turn": 3}}, {"unknown parameter 'way.turn'; did you mean 'turns'?"}),
        ({"way": {"side": "left"}, "pairs": {"a": [1, "x"]}}, {"pairs.a.1 must be an integer (got 'x')"}),
        ({"way": {"side": "left"}, "couple": [1, "x"]}, {"couple.1 must be an integer (got 'x')"}),
        ({"way": {"side": "left"}, "couple": "x"}, {"couple must be a list (got 'x')"}),
    ],
)
def test_branches_of_unions_do_not_show(values: dict[str, Any], says: set[str]) -> None:
    text = "; ".join(map(str, complaints(errors_of(Unions, values), Unions)))
    assert "Left" not in text
    assert "Right" not in text
    assert "[" not in text
    for words in says:
        assert words in text


def test_values_are_short() -> None:
    assert [shown(v) for v in (None, True, 3, 2.5, "a", [1], {"a": 1})] == [
        "null", "true", "3", "2.5", "'a'", "a list", "a mapping"
    ]  # fmt: skip
    assert len(shown("x" * 10**6)) < 100
    assert shown(10**5000) == "a number of more than 80 digits"


def test_the_nearest_name() -> None:
    known = ["guidance_scale", "num_inference_steps", "negative_prompt", "true_cfg_scale"]
    for given, meant in (("guidence_scale", known[0]), ("steps", known[1]), ("negative", known[2]), ("scale", None)):
        assert nearest(given, known) == meant
