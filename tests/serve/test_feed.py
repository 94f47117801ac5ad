"""The events of one job, for any number of readers."""

from __future__ import annotations

import asyncio

from raydiance.serve.feed import IDS_PER_ATTEMPT, Feed


async def test_late_and_early_readers_see_the_same() -> None:
    feed = Feed("j", attempt=0)
    feed.publish("queued")
    waiting = asyncio.ensure_future(feed.read(after=1, wait_s=5))
    await asyncio.sleep(0)
    feed.publish("started")
    assert [e.type for e in await waiting] == ["started"]
    assert [e.type for e in await feed.read(after=0, wait_s=0)] == ["queued", "started"]


async def test_overtaken_progress_is_left_out_but_nothing_else() -> None:
    feed = Feed("j", attempt=0)
    for i in range(3):
        feed.publish("progress", {"step": i})
        feed.publish("preview", {"preview_index": i})
    got = await feed.read(after=0, wait_s=0)
    assert [(e.type, e.id) for e in got] == [("preview", 2), ("preview", 4), ("progress", 5), ("preview", 6)]


async def test_ids_grow_across_attempts() -> None:
    first, second = Feed("j", attempt=0), Feed("j", attempt=1)
    first.publish("completed")
    second.publish("queued")
    [early], [late] = await first.read(0, 0), await second.read(0, 0)
    assert early.id < IDS_PER_ATTEMPT < late.id
    assert first.is_closed
    assert not second.is_closed


async def test_a_reader_of_a_silent_feed_comes_back_empty() -> None:
    assert await Feed("j", attempt=0).read(after=0, wait_s=0.01) == []
