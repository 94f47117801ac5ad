"""The dispatchers of one model, as one: a new job goes to the one that its id falls on, or to another that is there;
what is asked of a job later goes to the one that has it. No torch."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from raydiance.models.card import ModelCard
from raydiance.serve.events import Event
from raydiance.serve.pricer import Quote
from raydiance.serve.request import GenerationRequest
from raydiance.serve.roster import LOST, DispatcherHandle

T = TypeVar("T")


class Dispatchers:
    """Args:
    handles: by slot.
    owner_of: a job's owner in the jobs table (`storage.owners`); None where it has none, or is gone.
    """

    def __init__(self, handles: Sequence[DispatcherHandle], owner_of: Callable[[str], Awaitable[str | None]]) -> None:
        self._handles = list(handles)
        self._owner_of = owner_of

    async def card(self) -> ModelCard | None:
        return await self._any("", lambda it: it.card())

    async def quote(self, request: GenerationRequest, specs: list[dict[str, Any]]) -> Quote:
        return await self._any("", lambda it: it.quote(request, specs))

    async def admit(self, job_id: str, request: GenerationRequest, specs: list[dict[str, Any]]) -> Quote:
        return await self._any(job_id, lambda it: it.admit(job_id, request, specs))

    async def withdraw(self, job_id: str) -> None:
        await self._any(job_id, lambda it: it.withdraw(job_id))

    async def enqueue(self, job_id: str) -> None:
        await self._any(job_id, lambda it: it.enqueue(job_id))

    async def why(self, job_id: str) -> str | None:
        return await (await self._having(job_id)).why(job_id)

    async def cancel(self, job_id: str) -> None:
        await (await self._having(job_id)).cancel(job_id)

    async def events(self, job_id: str, after: int) -> AsyncIterator[list[Event]]:
        async for batch in (await self._having(job_id)).events(job_id, after):
            yield batch

    async def events_since(self, job_id: str, after: int, wait_s: float) -> list[Event]:
        return await (await self._having(job_id)).events_since(job_id, after, wait_s)

    async def _any(self, job_id: str, question: Callable[[DispatcherHandle], Awaitable[T]]) -> T:
        """Raises one of `roster.LOST` where none is there."""
        first = slot_of_id(job_id, len(self._handles))
        for i in range(len(self._handles)):
            handle = self._handles[(first + i) % len(self._handles)]
            try:
                return await question(handle)
            except LOST:
                if i == len(self._handles) - 1:
                    raise
        raise AssertionError("there is a dispatcher")

    async def _having(self, job_id: str) -> DispatcherHandle:
        """The one that has a job, or is to have it."""
        if len(self._handles) == 1:
            return self._handles[0]
        owner = await self._owner_of(job_id)
        slot = None if owner is None else slot_of_owner(owner)
        if slot is None or slot >= len(self._handles):
            slot = slot_of_id(job_id, len(self._handles))
        return self._handles[slot]


def slot_of_id(job_id: str, num_slots: int) -> int:
    """The same in every process."""
    return zlib.crc32(job_id.encode()) % num_slots


def slot_of_owner(owner: str) -> int:
    """In `MODEL/SLOT/LIFE`."""
    return int(owner.rsplit("/", 2)[1])
