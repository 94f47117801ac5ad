"""Dynamic batching without a timer: what comes while the device is busy goes together when it is free."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

In = TypeVar("In")
Out = TypeVar("Out")


class Batcher(Generic[In, Out]):
    """Args:
    run: one result per item, in order; one batch runs at a time.
    """

    def __init__(self, run: Callable[[list[In]], Awaitable[Sequence[Out]]], max_batch_size: int) -> None:
        self.num_batches = 0
        self._run = run
        self._max_batch_size = max_batch_size
        self._waiting: deque[tuple[In, asyncio.Future[Out]]] = deque()
        self._draining: asyncio.Task[None] | None = None

    async def submit(self, item: In) -> Out:
        """Raises what `run` raised for its batch."""
        result: asyncio.Future[Out] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, result))
        if self._draining is None or self._draining.done():
            self._draining = asyncio.ensure_future(self._drain())
        return await result

    async def _drain(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._max_batch_size))]
            self.num_batches += 1
            try:
                outputs = await self._run([item for item, _ in batch])
            except Exception as e:  # noqa: BLE001 - handed to everyone who waits for this batch
                for _, result in batch:
                    if not result.done():
                        result.set_exception(e)
                continue
            for (_, result), output in zip(batch, outputs, strict=True):
                if not result.done():
                    result.set_result(output)
