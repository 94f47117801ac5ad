"""What waits for a denoiser, and what denoisers have: each sample is let go when it is its turn, a lease at a time.

A replica is given a few seconds of work ahead (`lead_s`), so that it decides over little at every step, and nothing
waits in it that another replica could do. What is more urgent than all that is there goes at once: room is made. So
does what could share a batch with what is there.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from raydiance.models.tier import TIERS
from raydiance.serve.engine.terms import Terms


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a job.

    Args:
        terms: the deadline in them is that of its denoising.
        seconds: of a replica that it still takes, alone.
        since: when it came, in Unix seconds.
        kind: samples of one kind can share batches.
    """

    job_id: str
    index: int
    terms: Terms
    seconds: float
    since: float
    kind: Hashable = None

    @property
    def key(self) -> tuple[str, int]:
        return self.job_id, self.index


def urgency(sample: Sample, now: float, patience_s: float) -> tuple[int, float, float, str, int]:
    """Less is first: what has waited for `patience_s`, then by tier, deadline and age. Pure."""
    tier = TIERS.index(sample.terms.tier)
    if now - sample.since >= patience_s:
        return -1, sample.since, 0.0, *sample.key
    return tier, sample.terms.deadline, sample.since, *sample.key


@dataclass(slots=True)
class _Waiting:
    sample: Sample
    turn: asyncio.Future[None]


class Backlog:
    """Belongs to one event loop.

    Args:
        num_replicas: that take the work now; while there is none, nothing is let go. See `look`.
        lead_s: seconds of work that each is given ahead.
        max_active: samples that each holds at most.
        max_batch: samples of one kind that are let go together to each, for the sake of their batch.
        patience_s: see `urgency`.
        clock: of Unix seconds.
    """

    def __init__(
        self,
        *,
        num_replicas: Callable[[], float],
        lead_s: float,
        max_active: int,
        max_batch: int = 1,
        patience_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._num_replicas = num_replicas
        self._lead_s = lead_s
        self._max_active = max_active
        self._max_batch = max_batch
        self._patience_s = patience_s
        self._clock = clock
        self._waiting: dict[tuple[str, int], _Waiting] = {}
        self._active: dict[tuple[str, int], Sample] = {}

    @property
    def waiting(self) -> list[Sample]:
        return [each.sample for each in self._waiting.values()]

    @property
    def active(self) -> list[Sample]:
        return list(self._active.values())

    def look(self) -> None:
        """Lets go what fits, after replicas have come or gone."""
        self._let_go()

    @asynccontextmanager
    async def turn(self, sample: Sample) -> AsyncIterator[None]:
        """Inside of it a replica may have the sample. Raises ValueError for one that waits or runs already."""
        if sample.key in self._waiting or sample.key in self._active:
            raise ValueError(f"sample {sample.index} of job {sample.job_id} is here already")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[sample.key] = _Waiting(sample, turn)
        self._let_go()
        try:
            await turn
            yield
        finally:
            self._waiting.pop(sample.key, None)
            self._active.pop(sample.key, None)
            self._let_go()

    def why(self, job_id: str) -> str | None:
        """What a sample of a job waits for, in words; None where none of them waits."""
        now = self._clock()
        ordered = self._ordered(now)
        place = next((i for i, each in enumerate(ordered) if each.sample.job_id == job_id), None)
        if place is None:
            return None
        ahead = [*(each.sample for each in ordered[:place]), *self._active.values()]
        first = ordered[place].sample
        before = f"{place} more urgent wait before it" if place else "it is the next"
        held = f"{len(self._active)} with {_total(self._active.values()):.1f} s of work"
        busy = f"{self._num_replicas():g} denoisers hold {held}"
        deadline = "none" if math.isinf(first.terms.deadline) else f"in {first.terms.deadline - now:.1f} s"
        return f"{before}; {busy}; {_total(ahead):.1f} s are ahead of it; tier {first.terms.tier}, deadline {deadline}"

    def _ordered(self, now: float) -> list[_Waiting]:
        return sorted(self._waiting.values(), key=lambda each: urgency(each.sample, now, self._patience_s))

    def _let_go(self) -> None:
        now, num_replicas = self._clock(), self._num_replicas()
        for waiting in self._ordered(now):
            if waiting.turn.done():
                continue
            if not self._has_room(waiting.sample, num_replicas, now):
                return
            del self._waiting[waiting.sample.key]
            self._active[waiting.sample.key] = waiting.sample
            waiting.turn.set_result(None)

    def _has_room(self, sample: Sample, num_replicas: float, now: float) -> bool:
        if len(self._active) >= self._max_active * num_replicas:
            return False
        alike = sum(each.kind == sample.kind for each in self._active.values())
        if sample.kind is not None and 0 < alike < self._max_batch * num_replicas:
            return True
        own = urgency(sample, now, self._patience_s)
        before = [each for each in self._active.values() if urgency(each, now, self._patience_s) < own]
        return _total(before) < self._lead_s * num_replicas


def _total(samples: Iterable[Sample]) -> float:
    return math.fsum(sample.seconds for sample in samples)
