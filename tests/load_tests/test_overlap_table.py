"""What the overlap benchmark makes of its times, on times that are made up."""

from __future__ import annotations

from typing import Any

import pytest
from overlap_goals import metrics
from overlap_table import Figures

THREE = 3


def arm(name: str, layout: str = "sequence", role: str = "step", works: int = 1, wire_bytes: int | None = None) -> Any:
    return {"name": name, "layout": layout, "role": role, "works": works, "wire_bytes": wire_bytes}


def figures(row: str, rate: str, seconds: dict[Any, list[float]]) -> Figures:
    """Args:
    seconds: by an arm, or by the name of one that is sharded by sequence.
    """
    arms = [arm(key) if isinstance(key, str) else dict(key) for key in seconds]
    by_name = {a["name"]: times for a, times in zip(arms, seconds.values(), strict=True)}
    return Figures(row, rate, arms, by_name, {name: [0] * len(times) for name, times in by_name.items()})


def frozen(**values: Any) -> Any:
    return tuple(arm(**values).items())


COMPUTE = frozen(name="compute alone", role="compute")
COMMUNICATION = frozen(name="communication alone", role="communication")


def test_the_floor_is_the_larger_one_of_each_round() -> None:
    made = figures("wan-free", "200mbit", {COMPUTE: [1.0, 3.0, 1.0], COMMUNICATION: [2.0, 2.0, 2.0], "a": [4, 3, 3]})
    assert made.floor("sequence") == [2.0, 3.0, 2.0]
    assert made.over_floor("a") == pytest.approx(1.5)
    assert made.floor("cfg") is None


def test_of_least_times_the_floor_is_that_of_undisturbed_rounds() -> None:
    made = figures("wan-free", "200mbit", {COMPUTE: [1.0, 9.0], COMMUNICATION: [9.0, 2.0], "a": [2.5, 9.0]})
    assert made.floor("sequence") == [9.0, 9.0]
    assert made.least_over_floor("a") == pytest.approx(1.25)
    assert made.least_floor("cfg") is None


def test_of_two_that_compute_alone_the_faster_one_is_the_floor() -> None:
    slow = frozen(name="another", role="compute")
    made = figures("wan-free", "200mbit", {slow: [5.0] * THREE, COMPUTE: [1.0] * THREE, "a": [2.0] * THREE})
    assert made.over_floor("a") == pytest.approx(2.0)


def test_a_step_that_does_several_works_is_compared_by_the_work() -> None:
    two = frozen(name="two", layout="request", works=2)
    made = figures("wan-free", "200mbit", {"a": [1.0] * THREE, two: [1.2] * THREE, COMPUTE: [0.1] * THREE})
    assert made.best() == "two"
    assert made.best(works=1) == "a"
    assert made.ratio("a", "two") == pytest.approx(1 / 0.6)
    assert made.over_floor("two") is None


def test_ratios_are_of_rounds_not_of_medians() -> None:
    made = figures("wan-free", "200mbit", {"a": [1.0, 10.0, 3.0], "b": [2.0, 20.0, 1.0]})
    assert made.ratio("a", "b") == pytest.approx(0.5)


@pytest.mark.parametrize(("sent", "is_wrong"), [(999_999, True), (1_002_000, False), (1_051_000, True)])
def test_bytes_that_the_formula_does_not_know_are_found(sent: int, is_wrong: bool) -> None:
    made = Figures("flux", "1gbit", [arm("a", wire_bytes=1_000_000)], {"a": [1.0]}, {"a": [sent]})
    assert bool(made.wrong_bytes()) is is_wrong
    assert all("flux at 1gbit: a sent" in line for line in made.wrong_bytes())


def test_every_arm_and_floor_has_a_line() -> None:
    two = frozen(name="two", layout="request", works=2)
    times: dict[Any, list[float]] = {COMPUTE: [0.1, 0.3], COMMUNICATION: [0.2, 0.2], "a": [0.3, 0.3], two: [0.4, 0.4]}
    lines = figures("wan-free", "200mbit", times).lines()
    assert lines[0] == "wan-free at 200mbit, 2 rounds"
    assert [line.split("  ")[0] for line in lines[2:6]] == ["compute alone", "communication alone", "a", "two"]
    assert lines[4].split()[2:8] == ["300.0", "300.0", "300.0", "1.500", "1.250", "1.500"]
    assert lines[6] == "floor of sequence: 200.0 of least times, 250.0 median"


def test_without_ours_there_is_no_metric() -> None:
    peers: dict[Any, list[float]] = {"diffusers": [2.0], "cache-dit": [1.5], COMPUTE: [1.0], COMMUNICATION: [1.0]}
    assert metrics([figures("flux", "200mbit", peers), figures("wan-free", "1gbit", peers)]) == {}


def test_metrics_of_the_slow_link() -> None:
    times: dict[Any, list[float]] = {
        COMPUTE: [0.8],
        COMMUNICATION: [1.0],
        "diffusers": [2.0],
        "cache-dit": [1.5],
        "ours, schedule chosen": [1.1],
    }
    found = metrics([figures(row, "200mbit", times) for row in ("wan-free", "wan-pair", "flux")])
    assert found["wan_200mbit_over_floor"] == {"value": 1.1, "unit": "ratio", "goal": "<= 1.20"}
    assert found["wan_200mbit_speedup_vs_diffusers"] == {"value": 1.8182, "unit": "x", "goal": ">= 1.35"}
    assert found["wan_pair_200mbit_speedup_vs_diffusers"]["goal"] == ">= 1.6"
    assert found["flux_200mbit_speedup_vs_cachedit"] == {"value": 1.3636, "unit": "x", "goal": ">= 1.15"}


def test_lanes_are_compared_with_the_faster_one_of_one_after_the_other() -> None:
    times: dict[Any, list[float]] = {
        "ours synchronous": [2.0],
        "ours overlapped": [1.5],
        "ours two lanes": [1.0],
    }
    found = metrics([figures("wan-two", "200mbit", times)])
    assert found == {"wan_two_200mbit_lanes_throughput": {"value": 1.5, "unit": "x", "goal": ">= 1.25"}}


def test_the_worst_row_counts_on_the_fast_link() -> None:
    good: dict[Any, list[float]] = {"diffusers": [1.0], "ours synchronous": [0.9], "ours, schedule chosen": [0.8]}
    bad = good | {"ours, schedule chosen": [0.99]}
    found = metrics([figures("wan-free", "1gbit", good), figures("wan-pair", "1gbit", bad)])
    assert found == {"wan_1gbit_vs_best_other": {"value": 1.1, "unit": "ratio", "goal": "<= 1.02"}}


def test_what_is_chosen_is_compared_with_the_best_that_does_one_work() -> None:
    two = frozen(name="two", layout="request", works=2)
    one: dict[Any, list[float]] = {"a": [1.0], two: [0.5], "ours, all chosen": [1.02]}
    other: dict[Any, list[float]] = {"a": [1.0], "ours, all chosen": [0.9]}
    found = metrics([figures("wan-free", "200mbit", one), figures("flux", "1gbit", other)])
    assert found == {"auto_vs_best_layout": {"value": 1.02, "unit": "ratio", "goal": "<= 1.03"}}
