"""What comes: steady streams, ramps, counters that begin anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiance.deploy.forecast import Arrivals, observed


def watched(rates: list[float], window_s: float = 30.0, tick_s: float = 1.0) -> Arrivals:
    arrivals, total = observed(Arrivals(), 0.0, 0.0, window_s), 0.0
    for i, rate in enumerate(rates):
        total += rate * tick_s
        arrivals = observed(arrivals, (i + 1) * tick_s, total, window_s)
    return arrivals


def test_a_steady_stream_is_what_it_is() -> None:
    assert watched([3.0] * 600).level == pytest.approx(3.0, rel=0.01)


def test_a_ramp_is_followed_one_window_late() -> None:
    assert watched([0.01 * i for i in range(600)]).level == pytest.approx(6.0 - 0.01 * 30, abs=0.02)


def test_looks_that_follow_at_once_and_counters_that_begin_anew_say_nothing() -> None:
    arrivals = watched([3.0] * 100)
    assert observed(arrivals, 100.2, 9e9, 30.0) == arrivals
    anew = observed(arrivals, 101.0, 0.0, 30.0)
    assert (anew.level, anew.total_s) == (arrivals.level, 0.0)
    assert observed(anew, 102.0, 3.0, 30.0).level == pytest.approx(3.0, rel=0.05)


@given(st.lists(st.floats(0, 100), max_size=50))
def test_it_is_never_negative_nor_above_the_most(rates: list[float]) -> None:
    assert 0 <= watched(rates).level <= max(rates, default=0.0) + 1e-9
