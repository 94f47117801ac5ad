"""Stores that are away for a while: what is asked of them is asked again, so that no work is done twice for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from raydiance.serve.errors import Unavailable

T = TypeVar("T")
log = logging.getLogger("ray.serve")
PATIENCE_S = 120.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 5.0


class Patience:
    """With one thing that is away."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._wait_s = FIRST_WAIT_S

    async def wait(self, error: Unavailable) -> None:
        """A moment, longer each time. Raises the error when it has been so for PATIENCE_S."""
        if time.monotonic() - self._since >= PATIENCE_S:
            raise error
        log.warning("tried again in %.1f s: %s", self._wait_s, error)
        await asyncio.sleep(self._wait_s)
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Its result, also after some time; what it does may be done twice. Raises Unavailable after PATIENCE_S of that."""
    patience = Patience()
    while True:
        try:
            return await work()
        except Unavailable as e:
            await patience.wait(e)
