"""Samples under which a replica died go on one at a time, until each has come further than it was: so that one that
takes replicas down takes no other sample for its accomplice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Quarantine:
    """Of all samples of a dispatcher. Belongs to one event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def held(self, is_suspect: bool) -> AsyncIterator[Callable[[], None]]:
        """Inside of it no other suspect is, until what is yielded is called: the sample is above suspicion."""
        if not is_suspect:
            yield _nothing
            return
        await self._lock.acquire()
        is_held = True

        def clear() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._lock.release()

        try:
            yield clear
        finally:
            clear()


def _nothing() -> None:
    return None
