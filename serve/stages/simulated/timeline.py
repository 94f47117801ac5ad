"""Time that passes as it would on a device that does one thing after the other."""

from __future__ import annotations

import asyncio
import time

CATCH_UP_S = 0.05
"""What begins so late after what was before it began when that ended: sleeps that are too long, and what a control
plane does between two steps, do not add up."""


class Timeline:
    """For one user at a time. Clock: monotonic."""

    def __init__(self) -> None:
        self._until = 0.0

    def sleep(self, seconds: float) -> None:
        """Until what begins now and takes so long has ended."""
        time.sleep(self._left(seconds))

    async def wait(self, seconds: float) -> None:
        """The same, on an event loop."""
        await asyncio.sleep(self._left(seconds))

    def _left(self, seconds: float) -> float:
        now = time.monotonic()
        began = self._until if now - self._until < CATCH_UP_S else now
        self._until = began + seconds
        return max(self._until - now, 0.0)
