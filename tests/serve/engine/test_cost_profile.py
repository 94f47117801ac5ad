"""A profile comes back from its file as it was, and is refused where it is of anything else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiance.models.family import Stage
from raydiance.models.options import LoadOptions
from raydiance.models.tiny import CHECKPOINT
from raydiance.serve.engine.cost_model import PARTS, TERMS, CostModel, Sample
from raydiance.serve.engine.cost_profile import Profile, ProfileError, identity_of, load_profile, machine


def options(stage: Stage, device: str = "cpu", dtype: str = "float32") -> LoadOptions:
    return LoadOptions(device, dtype)


HERE = identity_of(CHECKPOINT, options, 1)
PROFILE = Profile(
    CostModel({"text": {"texts": 0.5}}),
    HERE,
    machine(),
    (Sample("text", {"texts": 2, "calls": 1}, 1.1), Sample("tokens", {"tokens": 1, "calls": 1}, 1.0)),
)


@given(
    st.fixed_dictionaries(
        {}, optional={part: st.dictionaries(st.sampled_from(TERMS[part]), st.floats(0, 1e6)) for part in PARTS}
    ),
    st.floats(0, 2),
)
def test_a_model_comes_back_from_json(coefficients: dict[Any, dict[str, float]], inflation: float) -> None:
    model = CostModel(coefficients, inflation)
    assert CostModel.from_dict(json.loads(json.dumps(model.to_dict()))) == model


def test_a_profile_comes_back_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "new" / "cost.json"
    replace(PROFILE, model=CostModel({"text": {"texts": 0.5}, "tokens": {"tokens": 1.0}})).save(file)
    loaded = load_profile(file, HERE)
    assert loaded.model.predict("text", {"texts": 3}) == 1.5
    assert loaded.samples == PROFILE.samples
    assert loaded.machine == machine()
    assert {part: stats.mean for part, stats in loaded.errors().items()} == {"text": pytest.approx(0.1 / 1.1)}
    assert [path.name for path in file.parent.iterdir()] == ["cost.json"]


def test_an_identity_says_what_costs_depend_on(tmp_path: Path) -> None:
    assert HERE["family"] == "wan"
    assert HERE["num_threads"] == "1"
    assert {"torch", "raydiance", "diffusers", "decode.files"} <= HERE.keys()
    assert identity_of(CHECKPOINT, options, 1) == HERE
    assert identity_of(CHECKPOINT, options, 0)["num_threads"] == str(os.cpu_count())
    on_gpu = identity_of(CHECKPOINT, partial(options, device="cuda"), 1)
    assert on_gpu["denoise.device"] == "cuda"
    assert "num_threads" not in on_gpu


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (identity_of(CHECKPOINT, options, 2), "num_threads 1, and here it is 2"),
        (
            identity_of(CHECKPOINT, partial(options, dtype="bfloat16"), 1),
            "decode.dtype float32, and here it is bfloat16",
        ),
        ({**HERE, "denoise.files": "another"}, "and here it is another"),
        ({**HERE, "torch": "1.0"}, "and here it is 1.0"),
        ({k: v for k, v in HERE.items() if k != "num_threads"}, "num_threads 1, and here it is none"),
    ],
    ids=["threads", "dtype", "files", "version", "less"],
)
def test_of_something_else_it_is_refused(tmp_path: Path, changed: dict[str, str], says: str) -> None:
    PROFILE_FILE = tmp_path / "cost.json"
    KNOWN.save(PROFILE_FILE)
    with pytest.raises(ProfileError) as refused:
        load_profile(PROFILE_FILE, changed)
    message = str(refused.value)
    assert message.startswith(str(PROFILE_FILE))
    assert says in message
    assert message.endswith("measure again with `raydiance calibrate`")


KNOWN = replace(PROFILE, samples=PROFILE.samples[:1])


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"format": "something"}, "is no cost profile"),
        ([1], "is no cost profile"),
        ({"version": 99}, "is of version 99, and this reads 1"),
        ({"model": {"coefficients": {"text": {"texts": -1.0}}, "inflation": 0}}, "text.texts=-1.0 must be a number"),
        ({"model": {"coefficients": {"text": {"walls": 1.0}}, "inflation": 0}}, "text.walls is not one of"),
        ({"model": {"coefficients": {"soup": {}}, "inflation": 0}}, "'soup' is not one of"),
        ({"model": {"coefficients": {}, "inflation": -1}}, "inflation=-1 must be"),
        ({"model": None}, "is damaged"),
        ({"samples": [{"part": "text"}]}, "is damaged"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, values: Any, says: str) -> None:
    file = tmp_path / "cost.json"
    file.write_text(json.dumps(KNOWN.to_dict() | values if isinstance(values, dict) else values))
    with pytest.raises(ProfileError, match=r"cost\.json") as refused:
        load_profile(file, HERE)
    assert says in str(refused.value)
    assert "raydiance calibrate" in str(refused.value)


def test_prices_are_told_without_torch() -> None:
    """A dispatcher prices what it has not begun, and knows no torch."""
    names = "raydiance.serve.engine.price, raydiance.serve.engine.cost_profile"
    code = f"import sys, {names}; print(sorted({{'torch', 'ray'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_file_that_is_not_there_or_no_json(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"cannot read .*missing\.json: No such file"):
        load_profile(tmp_path / "missing.json", HERE)
    with pytest.raises(ProfileError, match=r"cannot read .*: Is a directory"):
        load_profile(tmp_path, HERE)
    (tmp_path / "text").write_text("{")
    with pytest.raises(ProfileError, match="text is no JSON"):
        load_profile(tmp_path / "text", HERE)
