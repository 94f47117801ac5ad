"""Whose turn it is: a few seconds of work ahead, the urgent at once, nobody for ever last."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiance.models.tier import TIERS, Tier
from raydiance.serve.backlog import Backlog, Sample, urgency
from raydiance.serve.engine.terms import Terms


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def sample(
    name: str, seconds: float = 1.0, deadline: float = math.inf, tier: Tier = "standard", since: float = 1000.0
) -> Sample:
    return Sample(name, 0, Terms(deadline, tier), seconds, since)


def backlog(clock: Clock | None = None, **changed: float) -> Backlog:
    values = {"num_replicas": 1, "lead_s": 2.0, "max_active": 10, "patience_s": 60.0} | changed
    replicas = values.pop("num_replicas")
    return Backlog(clock=clock or Clock(), num_replicas=lambda: int(replicas), **values)  # type: ignore[arg-type]


class Crowd:
    """Samples that take their turn, and hold it until they are told to leave."""

    def __init__(self, backlog: Backlog) -> None:
        self.backlog = backlog
        self.running: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leave: dict[str, asyncio.Event] = {}

    async def come(self, *samples: Sample) -> list[str]:
        for each in samples:
            self._leave[each.job_id] = asyncio.Event()
            self._tasks[each.job_id] = asyncio.ensure_future(self._hold(each))
        return await self.settled()

    async def leave(self, *names: str) -> list[str]:
        for name in names:
            self._leave[name].set()
        return await self.settled()

    async def cancel(self, name: str) -> list[str]:
        self._tasks[name].cancel()
        return await self.settled()

    async def settled(self) -> list[str]:
        for _ in range(5):
            await asyncio.sleep(0)
        return list(self.running)

    async def _hold(self, each: Sample) -> None:
        async with self.backlog.turn(each):
            self.running.append(each.job_id)
            try:
                await self._leave[each.job_id].wait()
            finally:
                self.running.remove(each.job_id)

    async def end(self) -> None:
        for event in self._leave.values():
            event.set()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


async def test_a_replica_is_given_a_few_seconds_of_work_ahead() -> None:
    crowd = Crowd(backlog())
    assert await crowd.come(*[sample(name) for name in "abcd"]) == ["a", "b"]
    assert await crowd.leave("a") == ["b", "c"]
    await crowd.end()


async def test_one_that_is_longer_than_that_goes_when_nothing_is_before_it() -> None:
    crowd = Crowd(backlog())
    assert await crowd.come(sample("long", 50.0), sample("next")) == ["long"]
    assert await crowd.leave("long") == ["next"]
    await crowd.end()


async def test_what_is_more_urgent_goes_at_once_and_what_is_less_waits() -> None:
    crowd = Crowd(backlog())
    await crowd.come(sample("long", 50.0, deadline=2000.0))
    assert await crowd.come(sample("later", 1.0, deadline=3000.0)) == ["long"]
    assert await crowd.come(sample("sooner", 1.0, deadline=1500.0)) == ["long", "sooner"]
    assert await crowd.come(sample("waits", 1.0, tier="interactive", deadline=9000.0)) == ["long", "sooner", "waits"]
    await crowd.end()


async def test_no_more_than_may_be_held_are_let_go_however_urgent() -> None:
    crowd = Crowd(backlog(max_active=2, lead_s=100.0))
    await crowd.come(sample("a"), sample("b"))
    assert await crowd.come(sample("c", tier="interactive"), sample("d", tier="batch")) == ["a", "b"]
    assert await crowd.leave("a") == ["b", "c"]
    await crowd.end()


async def test_what_can_share_a_batch_goes_along() -> None:
    crowd = Crowd(backlog(max_batch=3))
    long = [replace(sample(name, 50.0, deadline=2000.0 + i), kind="video") for i, name in enumerate("abcd")]
    assert await crowd.come(*long, replace(sample("other", 1.0, deadline=3000.0), kind="image")) == ["a", "b", "c"]
    assert await crowd.leave("a") == ["b", "c", "d"]
    await crowd.end()


async def test_who_is_cancelled_in_the_queue_holds_nobody_up() -> None:
    crowd = Crowd(backlog())
    await crowd.come(sample("a", 9.0), sample("b", 9.0), sample("c", 9.0))
    await crowd.cancel("b")
    assert await crowd.leave("a") == ["c"]
    assert await crowd.cancel("c") == []
    assert (crowd.backlog.active, crowd.backlog.waiting) == ([], [])
    await crowd.end()


async def test_what_has_waited_long_enough_comes_first_whatever_its_tier() -> None:
    clock = Clock()
    crowd = Crowd(backlog(clock, patience_s=60.0))
    await crowd.come(sample("busy", 9.0, tier="interactive"))
    await crowd.come(sample("old", 9.0, tier="batch"))
    clock.now += 61.0
    await crowd.come(sample("new", 9.0, tier="interactive", since=clock.now))
    assert await crowd.leave("busy") == ["old"]
    await crowd.end()


async def test_one_that_is_here_already_is_refused_and_why_says_what_it_waits_for() -> None:
    crowd = Crowd(backlog())
    await crowd.come(sample("a", 9.0), sample("b", 9.0, deadline=1090.0, tier="batch"))
    with pytest.raises(ValueError, match="sample 0 of job b is here already"):
        async with crowd.backlog.turn(sample("b")):
            pass
    why = crowd.backlog.why("b")
    assert why is not None
    assert "it is the next" in why
    assert "tier batch, deadline in 90.0 s" in why
    assert crowd.backlog.why("a") is None
    await crowd.end()


async def test_nothing_goes_while_there_is_no_replica_and_what_fits_when_there_are() -> None:
    num_replicas = 0
    crowd = Crowd(Backlog(num_replicas=lambda: num_replicas, lead_s=2.0, max_active=3, patience_s=60.0, clock=Clock()))
    assert await crowd.come(*[sample(name) for name in "abcdefgh"]) == []
    num_replicas = 1
    crowd.backlog.look()
    assert await crowd.settled() == ["a", "b"]
    num_replicas = 2
    crowd.backlog.look()
    assert await crowd.settled() == ["a", "b", "c", "d"]
    num_replicas = 0
    assert await crowd.leave("a") == ["b", "c", "d"]
    assert "0 denoisers hold 3" in (crowd.backlog.why("e") or "")
    num_replicas = 9
    crowd.backlog.look()
    await crowd.end()


samples = st.lists(
    st.tuples(st.sampled_from(TIERS), st.floats(0.1, 9), st.sampled_from([1010.0, 1050.0, math.inf])),
    min_size=1,
    max_size=12,
)


@given(samples, st.integers(1, 4), st.floats(0.5, 10), st.sets(st.integers(0, 11)))
def test_everyone_has_a_turn_in_the_end(
    kinds: list[tuple[Tier, float, float]], max_active: int, lead_s: float, cancelled: set[int]
) -> None:
    async def play() -> None:
        crowd, most = Crowd(backlog(max_active=max_active, lead_s=lead_s)), 0
        come = [sample(str(i), seconds, deadline, tier) for i, (tier, seconds, deadline) in enumerate(kinds)]
        await crowd.come(*come)
        for i in cancelled & set(range(len(come))):
            await crowd.cancel(str(i))
        done: set[str] = set()
        while crowd.running:
            most = max(most, len(crowd.running))
            done.add(first := crowd.running[0])
            await crowd.leave(first)
        assert most <= max_active
        assert {str(i) for i in range(len(come))} - {str(i) for i in cancelled} <= done
        assert (crowd.backlog.active, crowd.backlog.waiting) == ([], [])

    asyncio.run(play())


def test_the_order_is_total() -> None:
    a, b = sample("a"), sample("b")
    assert urgency(a, 1000.0, 60.0) != urgency(b, 1000.0, 60.0)
