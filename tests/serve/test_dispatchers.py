"""Several dispatchers of a model as one: who is asked of a job, and what holds while one of them is away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from ray.exceptions import RayActorError

from raydiance.serve.dispatchers import Dispatchers, slot_of_id
from raydiance.serve.events import Event
from raydiance.serve.roster import DispatcherHandle

OWNERS = {"a": "m/with/slash/2/f00", "gone": "m/7/f00"}


class One:
    def __init__(self, slot: int, away: bool = False) -> None:
        self.slot = slot
        self.away = away
        self.asked: list[tuple[str, str]] = []

    async def _answer(self, what: str, job_id: str = "") -> int:
        if self.away:
            raise RayActorError
        self.asked.append((what, job_id))
        return self.slot

    async def card(self) -> Any:
        return await self._answer("card")

    async def enqueue(self, job_id: str) -> Any:
        return await self._answer("enqueue", job_id)

    async def why(self, job_id: str) -> Any:
        return await self._answer("why", job_id)

    async def cancel(self, job_id: str) -> Any:
        return await self._answer("cancel", job_id)

    async def events(self, job_id: str, _after: int) -> AsyncIterator[list[Event]]:
        await self._answer("events", job_id)
        yield []


async def owner_of(job_id: str) -> str | None:
    return OWNERS.get(job_id)


def several(*away: bool) -> tuple[Dispatchers, list[One]]:
    ones = [One(slot, is_away) for slot, is_away in enumerate(away)]
    return Dispatchers(cast("list[DispatcherHandle]", ones), owner_of), ones


async def test_new_jobs_are_shared_by_their_ids() -> None:
    dispatchers, ones = several(False, False, False)
    ids = [f"image_{i:032x}" for i in range(90)]
    for job_id in ids:
        await dispatchers.enqueue(job_id)
    assert sorted(job for one in ones for _, job in one.asked) == sorted(ids)
    assert all(len(one.asked) > 15 for one in ones)
    assert all(slot_of_id(job, 3) == one.slot for one in ones for _, job in one.asked)


async def test_what_a_job_is_asked_goes_to_the_one_that_has_it() -> None:
    dispatchers, ones = several(False, False, False)
    assert await dispatchers.why("a") == 2
    await dispatchers.cancel("a")
    assert [batch async for batch in dispatchers.events("a", 0)] == [[]]
    assert ones[2].asked == [("why", "a"), ("cancel", "a"), ("events", "a")]
    for job_id in ("gone", "unknown"):  # of a slot that is no more, or nobody's yet
        assert await dispatchers.why(job_id) == slot_of_id(job_id, 3)


async def test_another_takes_what_one_that_is_away_cannot() -> None:
    for away in range(2):
        dispatchers, ones = several(*[slot == away for slot in range(2)])
        for i in range(20):
            await dispatchers.enqueue(str(i))
        assert len(ones[1 - away].asked) == 20
        assert await dispatchers.card() == 1 - away
    dispatchers, _ = several(True, True)
    with pytest.raises(RayActorError):
        await dispatchers.enqueue("1")
