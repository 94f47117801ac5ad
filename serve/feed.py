"""The events of one job, kept in order for any number of readers. No torch, no Ray."""

from __future__ import annotations

import asyncio
from typing import Any

from raydiance.serve.events import Event, EventType

IDS_PER_ATTEMPT = 1_000_000


class Feed:
    """Args:
    attempt: how often the job was started before; ids grow across attempts, so a reader that resumes misses nothing.
    """

    def __init__(self, job_id: str, attempt: int) -> None:
        self.job_id = job_id
        self._next_id = attempt * IDS_PER_ATTEMPT + 1
        self._events: list[Event] = []
        self._changed = asyncio.Event()

    def publish(self, kind: EventType, data: dict[str, Any] | None = None) -> None:
        self._events.append(Event(id=self._next_id, type=kind, job_id=self.job_id, data=data or {}))
        self._next_id += 1
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        return bool(self._events) and self._events[-1].is_final

    async def read(self, after: int, wait_s: float) -> list[Event]:
        """Events with an id above `after`; waits for one at most `wait_s` seconds, then returns an empty list.

        Progress that a later progress event has overtaken is left out.
        """
        changed = self._changed
        found = self._since(after)
        if not found and not self.is_closed:
            try:
                await asyncio.wait_for(changed.wait(), wait_s)
            except TimeoutError:
                return []
            found = self._since(after)
        return found

    def _since(self, after: int) -> list[Event]:
        found = [e for e in self._events if e.id > after]
        last = max((e.id for e in found if e.type == "progress"), default=0)
        return [e for e in found if e.type != "progress" or e.id == last]
