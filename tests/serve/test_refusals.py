"""What was refused is refused again until its time, without asking."""

from __future__ import annotations

import asyncio

import pytest

from raydiance.serve.errors import TooManyRequests
from raydiance.serve.refusals import AT_ONCE, CONTENDED_S, FRESH_S, MAX_KINDS, Refusals


class Clock:
    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def refusals(clock: Clock) -> Refusals:
    return Refusals(clock)


async def asked(refusals: Refusals, kind: str = "small", model: str = "tiny") -> float | None:
    """None where the dispatcher is asked, else the seconds after which to come again."""
    try:
        async with refusals.asking(model, kind):
            return None
    except TooManyRequests as e:
        return e.retry_after_s


async def test_an_equal_request_is_refused_until_the_time_that_was_told(refusals: Refusals, clock: Clock) -> None:
    assert await asked(refusals) is None
    refusals.keep("tiny", "small", TooManyRequests("no", 0.5))
    clock.at += 0.2
    assert await asked(refusals) == pytest.approx(0.3)
    assert [await asked(refusals, "large"), await asked(refusals, model="other")] == [None, None]
    clock.at += 0.3
    assert await asked(refusals) is None


async def test_no_refusal_holds_for_long(refusals: Refusals, clock: Clock) -> None:
    refusals.keep("tiny", "small", TooManyRequests("no", 60.0))
    clock.at += FRESH_S / 2
    assert await asked(refusals) == pytest.approx(60.0 - FRESH_S / 2)
    clock.at += FRESH_S / 2
    assert await asked(refusals) is None


async def test_what_is_given_up_frees_room_of_its_model(refusals: Refusals) -> None:
    for model in ("tiny", "other"):
        refusals.keep(model, "small", TooManyRequests("no", 0.5))
    refusals.forget("tiny")
    assert [await asked(refusals), await asked(refusals, model="other")] == [None, 0.5]


async def test_of_many_equal_requests_few_ask_for_all(refusals: Refusals, clock: Clock) -> None:
    refusals.keep("tiny", "small", TooManyRequests("no", 0.5))
    clock.at += 0.5
    num_asked = 0

    async def one() -> None:
        nonlocal num_asked
        async with refusals.asking("tiny", "small"):
            num_asked += 1
            await asyncio.sleep(0)
            refusals.keep("tiny", "small", error := TooManyRequests("no", 0.5))
            raise error

    found = await asyncio.gather(*[one() for _ in range(20)], return_exceptions=True)
    assert num_asked == AT_ONCE
    assert all(isinstance(each, TooManyRequests) for each in found)


async def test_where_nothing_was_refused_lately_all_ask_at_once(refusals: Refusals, clock: Clock) -> None:
    refusals.keep("tiny", "small", TooManyRequests("no", 0.5))
    clock.at += CONTENDED_S
    async with asyncio.timeout(5), refusals.asking("tiny", "small"), refusals.asking("tiny", "small"):
        pass


async def test_what_was_refused_longest_ago_is_forgotten(refusals: Refusals) -> None:
    for i in range(MAX_KINDS + 1):
        refusals.keep("tiny", i, TooManyRequests("no", 0.5))
    assert await asked(refusals, 0) is None  # type: ignore[arg-type]
    assert await asked(refusals, MAX_KINDS) == pytest.approx(0.5)  # type: ignore[arg-type]
