"""The life of one dispatcher as its peers see it: its signs of life, and those that peers no longer give."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from raydiance.serve.errors import Unavailable
from raydiance.serve.patience import patiently
from raydiance.serve.storage.jobs import JobStore

log = logging.getLogger("ray.serve")
BEAT_S = 1.0
DEAD_BEATS = 6
"""Looks at a peer without a new sign of life, after which its jobs are free. Looks that failed do not count."""


class Ownership:
    """Attributes:
    id: that its jobs are owned by; nobody's before `register`.
    """

    def __init__(self, jobs: JobStore, model: str, slot: int) -> None:
        self.id = ""
        self._jobs = jobs
        self._model = model
        self._slot = slot
        self._seen: dict[str, tuple[int, int]] = {}  # of a peer: its signs of life, and looks without a new one

    async def register(self) -> None:
        """From now on it can have jobs; whoever had the slot before has lost its own. Waits for a table that is away.

        Raises Unavailable after a while.
        """
        self.id = await patiently(lambda: asyncio.to_thread(self._jobs.register, self._model, self._slot))

    async def keep(self, lost: Callable[[], None]) -> None:
        """After `register`. Goes on until cancelled. Raises Conflict when it has a successor: then it is one too many.

        Args:
            lost: called when it was taken for dead: its jobs are others' now. Without a successor it goes on as a new
                owner.
        """
        while True:
            try:
                if not await asyncio.to_thread(self._jobs.beat, self.id):
                    log.warning("dispatcher %s was taken for dead; it lets go of its jobs", self.id)
                    lost()
                    self.id = await asyncio.to_thread(self._jobs.register, self._model, self._slot, again=True)
                for owner, beat in self._look(await asyncio.to_thread(self._jobs.peers, self._model)):
                    if await asyncio.to_thread(self._jobs.bury, owner, beat):
                        log.warning("dispatcher %s shows no sign of life; its jobs go on elsewhere", owner)
            except Unavailable as e:
                log.warning("the jobs table is away, no sign of life is given: %s", e)
            await asyncio.sleep(BEAT_S)

    def _look(self, peers: dict[str, int]) -> list[tuple[str, int]]:
        """Those that are dead, with their last sign of life."""
        seen: dict[str, tuple[int, int]] = {}
        for owner, beat in peers.items():
            last, looks = self._seen.get(owner, (beat, 0))
            seen[owner] = (beat, looks + 1) if beat == last else (beat, 0)
        seen.pop(self.id, None)
        self._seen = seen
        return [(owner, beat) for owner, (beat, looks) in seen.items() if looks >= DEAD_BEATS]
