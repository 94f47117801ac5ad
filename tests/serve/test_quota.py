"""What a tenant may use: the decision alone, over counters that are given."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from raydiance.serve.errors import Forbidden, TooManyRequests
from raydiance.serve.quota import MINUTE_S, Ask, Counters, Limits, day_end, month_end, refusal

NOW = datetime(2026, 12, 31, 23, 59, 30, tzinfo=UTC).timestamp()


def ask(num_samples: int = 1, gpu_seconds: float = 1.0, **rest: Any) -> Ask:
    return Ask(
        **{"tenant": "acme", "model": "tiny", "tier": "standard", **rest},
        num_samples=num_samples,
        gpu_seconds=gpu_seconds,
    )


def waits(limits: Limits, counters: Counters, wanted: Ask, *names: str) -> float:
    refused = refusal(limits, counters, wanted, NOW)
    assert isinstance(refused, TooManyRequests)
    for name in ("acme", *names):
        assert name in refused.message
    return refused.retry_after_s


def never(limits: Limits, wanted: Ask, param: str | None, *words: str) -> None:
    refused = refusal(limits, Counters(), wanted, NOW)
    assert isinstance(refused, Forbidden)
    assert refused.param == param
    for word in words:
        assert word in refused.message


def test_nothing_limits_without_limits() -> None:
    used = Counters(unfinished=((NOW, 1000),), minute=((int(NOW), 1e6),), day=1e9, month=1e9)
    assert refusal(Limits(), used, ask(10, 1e6), NOW) is None


def test_concurrency_counts_samples() -> None:
    limits = Limits(concurrency=4)
    used = Counters(unfinished=((NOW + 9, 1), (NOW + 5, 2)))
    assert refusal(limits, used, ask(1), NOW) is None
    assert waits(limits, used, ask(2), "concurrency=4") == 5
    assert waits(limits, used, ask(4)) == 9
    assert waits(limits, Counters(unfinished=((NOW, 4),)), ask(1)) == 1, "one that is overdue ends soon, not now"
    never(limits, ask(5), "n", "5 samples", "concurrency=4")


def test_the_minute_tells_when_enough_has_left_it() -> None:
    limits = Limits(gpu_seconds_per_minute=10)
    second = int(NOW)
    used = Counters(minute=((second - 50, 4.0), (second - 20, 4.0), (second, 1.5)))
    assert refusal(limits, used, ask(gpu_seconds=0.5), NOW) is None
    assert waits(limits, used, ask(gpu_seconds=1.0), "gpu_seconds_per_minute=10", "used: 9.5") == 10
    assert waits(limits, used, ask(gpu_seconds=5.0)) == 40
    assert waits(limits, used, ask(gpu_seconds=10.0)) == 60
    never(limits, ask(gpu_seconds=10.5), None, "10.5", "gpu_seconds_per_minute=10")


def test_without_a_price_something_must_be_left() -> None:
    limits = Limits(gpu_seconds_per_minute=10)
    assert refusal(limits, Counters(minute=((int(NOW), 9.9),)), ask(gpu_seconds=0), NOW) is None
    assert waits(limits, Counters(minute=((int(NOW), 10.0),)), ask(gpu_seconds=0)) == 60


def test_the_day_ends_at_midnight_and_the_month_with_its_last() -> None:
    assert (day_end(NOW), month_end(NOW)) == (NOW + 30, NOW + 30)
    first = datetime(2026, 2, 1, tzinfo=UTC).timestamp()
    assert (day_end(first), month_end(first)) == (first + 86_400, first + 28 * 86_400)
    assert waits(Limits(gpu_seconds_per_day=5), Counters(day=4.5), ask(), "gpu_seconds_per_day=5") == 30
    budget = Limits(monthly_budget=5)
    assert waits(budget, Counters(month=4.5), ask(price=2.0), "monthly_budget=5") == 30
    assert refusal(budget, Counters(month=4.5), ask(price=0.5), NOW) is None
    never(budget, ask(price=6.0), None, "monthly_budget")


def test_of_several_the_longest_is_named() -> None:
    limits = Limits(gpu_seconds_per_minute=1, gpu_seconds_per_day=1, concurrency=1)
    used = Counters(unfinished=((NOW + 3, 1),), minute=((int(NOW), 1.0),), day=1.0)
    assert waits(limits, used, ask(), "gpu_seconds_per_minute") == 60


def test_models_and_tiers() -> None:
    limits = Limits(allowed_models=("wan", "flux"), allowed_tiers=("batch",))
    never(limits, ask(), "model", "'tiny'", "wan, flux")
    never(limits, ask(model="wan"), "service_tier", "'standard'", "batch")
    assert refusal(limits, Counters(), ask(model="wan", tier="batch"), NOW) is None


@pytest.mark.parametrize(
    "bad",
    [
        {"concurrency": 0},
        {"gpu_seconds_per_minute": -1.0},
        {"gpu_seconds_per_day": math.inf},
        {"monthly_budget": math.nan},
        {"weight": 0.0},
        {"allowed_models": ()},
    ],
)
def test_limits_that_are_none(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Limits(**bad)


amounts = st.floats(0, 50)
limit = st.none() | st.floats(0.1, 100)
offsets = st.integers(0, MINUTE_S - 1)


@given(
    limits=st.builds(
        Limits,
        concurrency=st.none() | st.integers(1, 8),
        gpu_seconds_per_minute=limit,
        gpu_seconds_per_day=limit,
        monthly_budget=limit,
    ),
    unfinished=st.lists(st.tuples(st.floats(0, 100), st.integers(1, 4)), max_size=5),
    minute=st.lists(st.tuples(offsets, amounts), max_size=6),
    day=amounts,
    month=amounts,
    num_samples=st.integers(1, 8),
    gpu_seconds=amounts,
    price=st.floats(0, 3),
    now=st.floats(1.7e9, 2.1e9),
)
def test_what_is_let_in_fits_and_who_comes_back_in_time_is_let_in(
    limits: Limits,
    unfinished: list[tuple[float, int]],
    minute: list[tuple[int, float]],
    day: float,
    month: float,
    num_samples: int,
    gpu_seconds: float,
    price: float,
    now: float,
) -> None:
    second = int(now)
    charged = tuple((second - age, amount) for age, amount in minute)
    counters = Counters(tuple((now + left, n) for left, n in unfinished), charged, day, month)
    wanted = ask(num_samples, gpu_seconds, price=price)
    refused = refusal(limits, counters, wanted, now)
    used = {
        "concurrency": (sum(n for _, n in unfinished), num_samples),
        "gpu_seconds_per_minute": (sum(a for _, a in minute), gpu_seconds),
        "gpu_seconds_per_day": (day, gpu_seconds),
        "monthly_budget": (month, gpu_seconds * price),
    }

    def fits(name: str, slack: float) -> bool:
        bound = getattr(limits, name)
        return bound is None or (sum(used[name]) <= bound * (1 + slack) and used[name][0] < bound * (1 + slack))

    if refused is None:
        assert all(fits(name, 1e-6) for name in used)
        return
    assert not all(fits(name, -1e-6) for name in used)
    if isinstance(refused, Forbidden):
        assert refusal(limits, Counters(), wanted, now) is not None, "an empty house does not let it in either"
        return
    later = now + refused.retry_after_s + 1e-3
    assert refusal(limits, at(counters, now, later), wanted, later) is None
    # of the minute alone, no moment before that would have done
    alone = Limits(gpu_seconds_per_minute=limits.gpu_seconds_per_minute)
    exact = refusal(alone, counters, wanted, now)
    if isinstance(exact, TooManyRequests) and exact.retry_after_s > 1e-2:
        sooner = now + exact.retry_after_s - 5e-3
        assert refusal(alone, at(counters, now, sooner), wanted, sooner) is not None


def at(counters: Counters, now: float, later: float) -> Counters:
    """The same counters at a later time, when nothing came and all that runs has ended as expected."""
    return Counters(
        tuple((end, n) for end, n in counters.unfinished if end > later),
        tuple((second, amount) for second, amount in counters.minute if second > int(later) - MINUTE_S),
        0.0 if later >= day_end(now) else counters.day,
        0.0 if later >= month_end(now) else counters.month,
    )
