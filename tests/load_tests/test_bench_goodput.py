"""What the goodput benchmark asks for, and how it counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from goodput_mix import MIX, OFF, balanced, kinds, mean_s, quick_mix, trace_of
from goodput_tally import STARVED_S, Book, Served, Tally, merged, metrics

ALONE = {"96x96": 0.8, "128x128": 1.9, "96x96x9": 2.2, "96x96x25": 4.9}
RATE = 0.9


def tally(arm: str, *served: tuple[str, str, float], load: float = 1.0) -> Tally:
    """Of small pictures, each with its tier, status and seconds."""
    return Tally(arm, load, [Served("96x96", *each) for each in served], ALONE)


@pytest.mark.parametrize("load", [0.7, 1.0, 1.5])
@pytest.mark.parametrize("round_", [0, 1])
def test_a_trace_has_the_load_that_it_says(load: float, round_: int) -> None:
    trace = trace_of(MIX, 90.0, load, RATE, ALONE, round_)
    assert trace == trace_of(MIX, 90.0, load, RATE, ALONE, round_)
    count = load * RATE * 90
    assert abs(len(trace) - count) <= OFF * count
    work = sum(ALONE[arrival.size] for arrival in trace)
    assert abs(work - count * mean_s(MIX, ALONE)) <= OFF * count * mean_s(MIX, ALONE)
    assert {arrival.tier for arrival in trace} == {"interactive", "standard", "batch"}


def test_rounds_have_traces_of_their_own() -> None:
    first, second = (trace_of(MIX, 90.0, 1.0, RATE, ALONE, round_) for round_ in (0, 1))
    assert first != second


def test_a_trace_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="take a longer one"):
        trace_of(MIX, 0.01, 1.0, RATE, ALONE, 0)


def test_a_closed_loop_asks_for_what_the_traces_ask_for() -> None:
    asked = balanced(MIX, 100)
    mean = sum(ALONE[arrival.size] for arrival in asked) / len(asked)
    assert mean == pytest.approx(mean_s(MIX, ALONE), rel=0.05)


def test_a_quick_run_asks_for_the_same_sizes_in_fewer_steps() -> None:
    assert [one.size for one in kinds(quick_mix())] == [one.size for one in kinds(MIX)] == list(ALONE)
    assert all(a.steps < b.steps for a, b in zip(kinds(quick_mix()), kinds(MIX), strict=True))


def test_only_what_is_done_counts_and_batch_has_no_target() -> None:
    found = tally(
        "ours",
        ("interactive", "done", 1.2),
        ("interactive", "done", 1.21),
        ("interactive", "refused", 0.0),
        ("standard", "failed", 0.1),
        ("batch", "done", 0.1),
    )
    assert (found.in_time(1.5), found.in_time(3), found.attainment(1.5)) == (1, 2, 0.25)


def test_what_starves() -> None:
    found = tally("ours", ("batch", "done", STARVED_S), ("batch", "done", STARVED_S + 1), ("batch", "failed", 1.0))
    assert found.num_starved == 2


def test_rounds_are_counted_together() -> None:
    good, bad = ("interactive", "done", 1.0), ("interactive", "done", 9.0)
    [found] = merged([tally("ours", good), tally("ours", bad, bad)])
    assert found.attainment(1.5) == pytest.approx(1 / 3)


def test_metrics_are_of_load_one() -> None:
    good, bad = ("interactive", "done", 1.0), ("interactive", "done", 9.0)
    tallies = [
        tally("ours", good, good, good, bad),
        tally("ours", bad, load=1.5),
        tally("plain", good, bad, bad, bad),
        tally("sjf", bad, bad),
    ]
    found = {name: each["value"] for name, each in metrics(tallies).items()}
    assert found == {
        "attainment": 0.75,
        "attainment_3x": 0.75,
        "starved_batch_requests": 0,
        "goodput_vs_plain_ray_serve": 3.0,
        "goodput_vs_sjf": 1.5,  # it had none in time, and is taken to have had one
    }
    assert metrics([tally("plain", good)]) == {}


def test_a_run_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    file, served = tmp_path / "book.jsonl", [Served("96x96", "batch", "done", 1.5)]
    book = Book(file)
    book.put("way", [2, 1, 0.9])
    book.put_served("ours at 1", served)
    again = Book(file)
    assert (again["way"], again.served("ours at 1"), "sjf at 1" in again) == ([2, 1, 0.9], served, False)
