"""How much may run at once: a job takes all its slots together, first come first served, and nobody overtakes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """Args:
    count: how many there are; a job that wants more takes all of them.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.free = count
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def take(self, num: int) -> AsyncIterator[None]:
        num = min(num, self.count)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((num, turn))
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._hand_out()  # it may have been the one that the others waited behind
            else:
                self._give_back(num)  # its turn came in the same moment
            raise
        try:
            yield
        finally:
            self._give_back(num)

    def _give_back(self, num: int) -> None:
        self.free += num
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting:
            num, turn = self._waiting[0]
            if not turn.cancelled():
                if num > self.free:
                    return
                self.free -= num
                turn.set_result(None)
            self._waiting.popleft()
