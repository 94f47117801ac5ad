"""Arrival traces: the statistics that they state, on large samples of a fixed seed."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist, fmean, quantiles, variance

import pytest
from trace_points import BURST_S
from trace_sessions import FAN_OUT, MEAN_ROUNDS, ending_chance, fit_gaps, hour_weights
from traces import MIXES, TRACES, Arrival, Ask, Mix, agents, humans, mmpp, poisson, read, write

WAN = MIXES["wan"]
DAY_S = 86_400.0
SCRIPT = Path(__file__).parents[2] / "load_tests" / "traces.py"


def by_session(trace: Sequence[Arrival]) -> list[list[Arrival]]:
    in_order = sorted(trace, key=lambda a: (a.session, a.at_s))
    return [list(group) for _, group in itertools.groupby(in_order, key=lambda a: a.session)]


def counts(trace: Sequence[Arrival], seconds: float, window_s: float) -> list[int]:
    found = Counter(int(a.at_s // window_s) for a in trace)
    return [found[i] for i in range(int(seconds // window_s))]


@pytest.fixture(scope="module")
def days() -> list[Arrival]:
    return humans(20 * DAY_S, 0.02, 3, WAN, day_s=DAY_S)


@pytest.mark.parametrize("make", TRACES.values(), ids=list(TRACES))
def test_the_same_seed_gives_the_same_trace_in_order_and_another_one_another(
    make: Callable[..., list[Arrival]],
) -> None:
    trace = make(2000, 0.5, 1, WAN)
    assert trace == make(2000, 0.5, 1, WAN)
    assert trace != make(2000, 0.5, 2, WAN)
    assert [a.at_s for a in trace] == sorted(a.at_s for a in trace)
    assert 0 <= trace[0].at_s < trace[-1].at_s < 2000


@pytest.mark.parametrize("make", TRACES.values(), ids=list(TRACES))
def test_the_rate_is_that_of_requests(make: Callable[..., list[Arrival]]) -> None:
    assert len(make(100_000, 0.3, 5, WAN)) / 100_000 == pytest.approx(0.3, rel=0.05)


def test_a_higher_rate_brings_the_same_requests_closer_together() -> None:
    slow, fast = poisson(1000, 0.5, 1, WAN), poisson(500, 1.0, 1, WAN)
    assert [replace(a, at_s=0.0) for a in slow] == [replace(a, at_s=0.0) for a in fast]
    assert [a.at_s for a in slow] == pytest.approx([2 * a.at_s for a in fast])


def test_poisson_counts_vary_as_much_as_their_mean_and_those_of_two_states_more() -> None:
    even, bursty = (counts(make(50_000, 1.0, 2, WAN), 50_000, 10.0) for make in (poisson, mmpp))
    assert variance(even) / fmean(even) == pytest.approx(1.0, abs=0.1)
    assert variance(bursty) / fmean(bursty) > 4


def test_bursts_are_as_fast_and_as_frequent_as_they_say() -> None:
    """Windows much shorter than a burst are in one state: their counts are those of one of two rates."""
    window_s = BURST_S / 10
    found = counts(mmpp(40_000, 3.0, 4, WAN, burst_factor=10.0), 40_000, window_s)
    calm_rate = 3.0 / (0.9 + 0.1 * 10)
    bursts = [n for n in found if n > 4 * calm_rate * window_s]
    calm = [n for n in found if n <= 4 * calm_rate * window_s]
    assert len(bursts) / len(found) == pytest.approx(0.1, abs=0.02)
    assert fmean(bursts) / fmean(calm) == pytest.approx(10.0, rel=0.15)


def test_what_is_asked_for_is_drawn_by_its_weights() -> None:
    mix = Mix((Ask("64x64", 16, 3), Ask("96x96", 8, 1)), (Ask("64x64x9", 20),), video_share=0.25, batch_share=0.2)
    trace = poisson(20_000, 1.0, 1, mix)
    share = Counter((a.kind, a.size, a.steps) for a in trace)
    assert share["video", "64x64x9", 20] / len(trace) == pytest.approx(0.25, abs=0.02)
    assert share["image", "64x64", 16] / share["image", "96x96", 8] == pytest.approx(3.0, rel=0.1)
    tiers = Counter((a.kind, a.tier) for a in trace)
    assert set(tiers) == {("image", "interactive"), ("image", "batch"), ("video", "standard"), ("video", "batch")}
    assert sum(n for (_, tier), n in tiers.items() if tier == "batch") / len(trace) == pytest.approx(0.2, abs=0.02)
    assert all(a.slo_scale == mix.slo_scales[a.tier] for a in trace)


def test_agents_fan_out_think_and_mix_images_with_videos() -> None:
    trace = agents(200_000, 0.5, 1, WAN)
    whole = [s for s in by_session(trace) if 1000 < s[0].at_s < 199_000]
    rounds = [[list(g) for _, g in itertools.groupby(s, key=lambda a: a.at_s)] for s in whole]
    sizes = Counter(len(r) for session in rounds for r in session)
    assert set(sizes) == set(range(FAN_OUT[0], FAN_OUT[1] + 1))
    assert all(n / sizes.total() == pytest.approx(0.2, abs=0.02) for n in sizes.values())
    pauses = [b[0].at_s - a[0].at_s - WAN.round_s for s in rounds for a, b in itertools.pairwise(s)]
    assert min(pauses) >= 1 - 1e-6
    assert max(pauses) <= 3 + 1e-6
    assert fmean(pauses) == pytest.approx(2.0, abs=0.05)
    lengths = Counter(len(s) for s in rounds)
    assert fmean(lengths.elements()) == pytest.approx(MEAN_ROUNDS, rel=0.05)
    for rounds_before in (1, 2, 3):  # geometric: the chance of another round does not depend on how many there were
        at_least = sum(n for k, n in lengths.items() if k >= rounds_before)
        assert lengths[rounds_before] / at_least == pytest.approx(1 / MEAN_ROUNDS, abs=0.05)
    assert sum(a.kind == "video" for a in trace) / len(trace) == pytest.approx(WAN.video_share, abs=0.02)
    mixed = sum({a.kind for a in r} == {"image", "video"} for s in rounds for r in s)
    assert mixed > 0.4 * sizes.total()
    assert all(len({(a.tenant, a.tier == "batch") for a in s}) == 1 for s in whole)


def test_people_ask_for_as_many_images_as_in_the_published_trace(days: list[Arrival]) -> None:
    shares = Counter(a.num for a in days)
    assert {num: n / len(days) for num, n in shares.items()} == pytest.approx(
        {1: 0.58, 4: 0.19, 8: 0.15, 2: 0.08}, abs=0.01
    )
    assert {a.kind for a in days} == {"image"}


def test_peoples_sessions_are_as_long_and_their_gaps_as_wide_as_in_the_published_trace(days: list[Arrival]) -> None:
    sessions = by_session(days)
    in_long = sum(len(s) for s in sessions if len(s) >= 5)
    assert in_long / len(days) == pytest.approx(0.64, abs=0.02)
    gaps = [b.at_s - a.at_s for s in sessions for a, b in itertools.pairwise(s)]
    assert max(gaps) < 600
    deciles = quantiles(gaps, n=10)
    assert [deciles[0], deciles[4], deciles[8]] == pytest.approx([26, 64, 213], rel=0.07)


def test_the_busiest_hour_of_a_day_has_nine_times_the_mean(days: list[Arrival]) -> None:
    hours = counts(days, 20 * DAY_S, 3600.0)
    by_hour = [fmean(hours[hour::24]) for hour in range(24)]
    assert max(by_hour) / fmean(by_hour) == pytest.approx(9.0, rel=0.08)
    assert by_hour.index(max(by_hour)) == 12


def test_hours_gaps_and_lengths_are_solved_exactly() -> None:
    weights = hour_weights()
    assert fmean(weights) == pytest.approx(1.0)
    assert max(weights) == pytest.approx(9.0)
    gaps = fit_gaps(26.0, 64.0, 213.0)
    logs = NormalDist(gaps.mu, gaps.sigma)
    at = {p: gaps.shift_s + math.exp(logs.inv_cdf(p)) for p in (0.1, 0.5, 0.9)}
    assert at == pytest.approx({0.1: 26.0, 0.5: 64.0, 0.9: 213.0})
    p = ending_chance(5, 0.64)
    held = [k * p * (1 - p) ** (k - 1) for k in range(1, 500)]
    assert sum(held[4:]) / sum(held) == pytest.approx(0.64)


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    trace = agents(500, 1.0, 1, WAN)
    write(trace, tmp_path / "trace.jsonl")
    assert read(tmp_path / "trace.jsonl") == trace


def test_a_line_that_is_no_arrival_is_named(tmp_path: Path) -> None:
    trace, file = poisson(20, 1.0, 1, WAN), tmp_path / "trace.jsonl"
    write([trace[1], trace[0]], file)
    with pytest.raises(ValueError, match=r"line 2: comes before"):
        read(file)
    file.write_text('{"at_s": 1}\n')
    with pytest.raises(ValueError, match=r"line 1: .*missing"):
        read(file)
    write([trace[0]], file)
    file.write_text(file.read_text().replace('"steps": 40', '"steps": 0'))
    with pytest.raises(ValueError, match=r"line 1: an arrival's numbers are positive"):
        read(file)


@pytest.mark.parametrize(
    ("kind", "size"), [("image", "64x64x9"), ("video", "64x64"), ("image", "64"), ("image", "ax9")]
)
def test_a_size_fits_its_kind(kind: str, size: str) -> None:
    with pytest.raises(ValueError, match=r"size|invalid literal"):
        replace(poisson(20, 1.0, 1, WAN)[0], kind=kind, size=size)


def test_the_script_writes_what_the_functions_make(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    options = ["agents", "--seconds", "300", "--rate", "0.5", "--seed", "3", "--mix", "tiny", "-o", str(file)]
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, check=True)
    trace = read(file)
    assert trace == agents(300, 0.5, 3, MIXES["tiny"])
    assert f"{len(trace)} requests" in done.stdout
