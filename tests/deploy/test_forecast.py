"""What comes: steady streams, ramps, counters that begin anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiance.deploy.forecast import Arrivals, forecast, observed


def watched(rates: list[float], window_s: float = 30.0, tick_s: float = 1.0) -> Arrivals:
    arrivals, total = observed(Arrivals(), 0.0, 0.0, window_s), 0.0
    for i, rate in enumerate(rates):
        total += rate * tick_s
        arrivals = observed(arrivals, (i + 1) * tick_s, total, window_s)
    return arrivals


def test_a_steady_stream_is_what_it_is() -> None:
    assert forecast(watched([3.0] * 600), 60.0) == pytest.approx(3.0, rel=0.01)


def test_a_stream_that_grows_is_expected_to_grow_and_at_most_to_double() -> None:
    growing = watched([0.01 * i for i in range(600)])
    assert growing.level < forecast(growing, 20.0) < 1.1 * 6.2
    assert forecast(growing, 1e6) == 2 * growing.level
    fading = watched([6.0 - 0.01 * i for i in range(600)])
    assert forecast(fading, 1e6) == fading.level / 2


def test_looks_that_follow_at_once_and_counters_that_begin_anew_say_nothing() -> None:
    arrivals = watched([3.0] * 100)
    assert observed(arrivals, 100.2, 9e9, 30.0) == arrivals
    anew = observed(arrivals, 101.0, 0.0, 30.0)
    assert (anew.level, anew.total_s) == (arrivals.level, 0.0)
    assert observed(anew, 102.0, 3.0, 30.0).level == pytest.approx(3.0, rel=0.05)


@given(st.lists(st.floats(0, 100), max_size=50), st.floats(0, 600))
def test_it_is_never_negative_nor_above_twice_the_most(rates: list[float], ahead_s: float) -> None:
    assert 0 <= forecast(watched(rates), ahead_s) <= 2 * max(rates, default=0.0) + 1e-9
