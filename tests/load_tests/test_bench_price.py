"""The price benchmark: what it holds out, that it reports nothing of wrong frames, and once in whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import bench_price
import numpy as np
import pytest

from raydiance.models import registry
from raydiance.models.tiny import CHECKPOINT
from raydiance.serve.engine.cost_design import Case, design
from raydiance.serve.engine.cost_measure import Made
from raydiance.serve.engine.cost_model import CostModel, Sample, text_work
from raydiance.serve.engine.price import Pricing

CARD = registry.card(CHECKPOINT, "tiny")
PARTS: Any = ("step", "denoise", "text", "decode", "video_file", "image_file")


def test_what_is_held_out_was_not_calibrated() -> None:
    calibration = design(CARD)
    cases = bench_price.held_out(CARD, 30, calibration, 5000)
    assert cases == bench_price.held_out(CARD, 30, calibration, 5000)
    seen = {(c.spec.height, c.spec.width, c.spec.num_frames) for c in calibration}
    assert not seen & {(c.spec.height, c.spec.width, c.spec.num_frames) for c in cases}
    assert {c.num_rows for c in cases} == set(bench_price.ROWS)
    assert {c.spec.num_inference_steps for c in cases} == set(bench_price.STEPS)


def bench(monkeypatch: pytest.MonkeyPatch, frames: list[np.ndarray]) -> tuple[str | None, bench_price.Bench]:
    """Of generations that take 2 s, and make these frames."""
    made = iter(Made([Sample("text", text_work(2), 2.0)], 2.0, [each]) for each in frames)
    monkeypatch.setattr(bench_price, "generate", lambda _studio, _case: next(made))
    model = CostModel({part: {} for part in PARTS} | {"text": {"calls": 1.0}})

    class Studio:
        card = CARD

    ran = bench_price.Bench(Studio(), Pricing(model), Pricing(model))  # type: ignore[arg-type]
    [case] = bench_price.held_out(CARD, 1, [], 5000)
    return ran.run(Case(case.spec), len(frames) - 1), ran


def test_equal_frames_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3)
    problem, ran = bench(monkeypatch, [frame] * 3)
    assert problem is None
    assert ran.errors == ran.uncorrected == [0.5]
    assert ran.pricing.error_stats("text").count == 2


@pytest.mark.parametrize("wrong", ["other", "blank"])
def test_of_wrong_frames_nothing_is_reported(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    frame = np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3)
    frames = [frame, frame, frame + 1] if wrong == "other" else [np.zeros_like(frame)] * 3
    problem, ran = bench(monkeypatch, frames)
    assert problem is not None
    assert "are not those of one that was not timed" in problem
    assert not ran.errors


@pytest.mark.slow
def test_the_whole_of_it(tmp_path: Path) -> None:
    file = tmp_path / "price.json"
    command = [sys.executable, str(Path(bench_price.__file__)), "--quick", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    metrics = json.loads(file.read_text())["metrics"]
    assert metrics["price_error_mean"]["goal"] == "<= 0.10"
    assert metrics["price_error_p95"]["goal"] == "<= 0.20"
    assert metrics["cases"]["value"] == 12
