"""Slots: all of a job's at once, first come first served."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiance.serve.slots import Slots


@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=30), cancelled=st.sets(st.integers(0, 29)))
def test_nobody_waits_for_ever_and_nobody_overtakes(sizes: list[int], cancelled: set[int]) -> None:
    async def play() -> tuple[list[int], int, int]:
        slots, begun, running, most = Slots(10), [], 0, 0

        async def job(index: int, num: int) -> None:
            nonlocal running, most
            async with slots.take(num):
                begun.append(index)
                running += min(num, 10)
                most = max(most, running)
                try:
                    await asyncio.sleep(0)
                finally:
                    running -= min(num, 10)

        tasks = [asyncio.ensure_future(job(i, num)) for i, num in enumerate(sizes)]
        await asyncio.sleep(0)
        for i in cancelled & set(range(len(sizes))):
            tasks[i].cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
        return begun, most, slots.free

    begun, most, free = asyncio.run(play())
    assert begun == sorted(begun)
    assert set(range(len(sizes))) - cancelled <= set(begun)
    assert most <= 10
    assert free == 10


async def test_a_job_larger_than_everything_takes_everything() -> None:
    slots = Slots(2)
    async with slots.take(5):
        assert slots.free == 0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(slots.take(1).__aenter__(), 0.01)
    assert slots.free == 2
