"""Replicas that come and go under a trace: what a scaling policy meets, and what that costs. Discrete events.

All policies have the same dispatcher: one queue, in the order of deadlines, what cannot be in time any more last, in
leases. A replica serves one sample at a time. It is paid for from when it is asked for until it is given back, and
serves `start_s` after it was asked for. What is scaled away hands its sample back; replicas that do not serve yet go
first, as Serve has it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trace_arrival import Arrival

LEASE_S = 5.0
TICK_S = 1.0
"""Between two decisions of a policy."""


@dataclass(slots=True)
class Sample:
    """Args: number: in the order of arrival; deadline: in seconds of the trace."""

    number: int
    arrival: Arrival
    seconds: float
    deadline: float
    remaining: float
    end_s: float = math.inf


@dataclass(frozen=True, slots=True)
class View:
    """What a policy sees.

    Args:
        num_live: replicas that serve; target: asked for.
        samples: that wait or are served.
        arrived_s: seconds of a replica that have ever come.
    """

    now: float
    num_live: int
    target: int
    samples: Sequence[Sample]
    arrived_s: float


class Scaler(Protocol):
    def replicas(self, view: View) -> int: ...


@dataclass(slots=True)
class _Replica:
    number: int
    asked_at: float
    live_at: float
    sample: Sample | None = None
    began_at: float = 0.0
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Args: peak: replicas at most; changes: of the target."""

    samples: tuple[Sample, ...]
    gpu_s: float
    peak: int
    changes: int

    @property
    def gpu_hours(self) -> float:
        return self.gpu_s / 3600

    def attainment(self, tier: str | None = None) -> float:
        """The share of requests that ended by their deadline, of a tier or of all."""
        found = [s.end_s <= s.deadline for s in self.samples if tier in (None, s.arrival.tier)]
        return sum(found) / len(found) if found else 1.0

    def mistakes(self) -> list[str]:
        """What cannot be."""
        found = [f"sample {s.number} never ended" for s in self.samples if math.isinf(s.end_s)]
        found += [
            f"sample {s.number} took {s.end_s - s.arrival.at_s:.1f} s, less than its {s.seconds:.1f}"
            for s in self.samples
            if s.end_s - s.arrival.at_s < s.seconds - 1e-6
        ]
        if (least := sum(s.seconds for s in self.samples)) > self.gpu_s + 1e-6:
            found.append(f"{least:.0f} GPU-seconds of work were done in {self.gpu_s:.0f}")
        return found


@dataclass
class Simulation:
    """Args:
    service_s: of a sample, alone on a replica.
    start_s: from asking for a replica until it serves.
    """

    trace: Sequence[Arrival]
    service_s: Callable[[Arrival], float]
    scaler: Scaler
    start_s: float
    num_initial: int = 1
    _replicas: list[_Replica] = field(default_factory=list, init=False)
    _waiting: list[Sample] = field(default_factory=list, init=False)
    _events: list[tuple[float, int, int, int]] = field(default_factory=list, init=False)
    _numbers: itertools.count[int] = field(default_factory=itertools.count, init=False)
    _gpu_s: float = field(default=0.0, init=False)
    _arrived_s: float = field(default=0.0, init=False)

    def run(self) -> Outcome:
        samples = [self._sample(i, arrival) for i, arrival in enumerate(self.trace)]
        for _ in range(self.num_initial):
            self._replicas.append(_Replica(next(self._numbers), 0.0, 0.0))
        upcoming, target, peak, changes, unfinished = 0, self.num_initial, self.num_initial, 0, len(samples)
        now, next_tick = 0.0, 0.0
        while unfinished:
            now = min(
                samples[upcoming].arrival.at_s if upcoming < len(samples) else math.inf,
                self._events[0][0] if self._events else math.inf,
                next_tick,
            )
            while upcoming < len(samples) and samples[upcoming].arrival.at_s <= now:
                self._waiting.append(samples[upcoming])
                self._arrived_s += samples[upcoming].seconds
                upcoming += 1
            unfinished -= self._leases_ended(now)
            if now >= next_tick:
                next_tick += TICK_S
                here = self._waiting + [r.sample for r in self._replicas if r.sample is not None]
                live = sum(r.live_at <= now for r in self._replicas)
                wanted = self.scaler.replicas(View(now, live, target, here, self._arrived_s))
                changes += wanted != target
                target = wanted
                self._scale(now, target)
                peak = max(peak, target)
            self._assign(now)
        self._gpu_s += sum(now - r.asked_at for r in self._replicas)
        return Outcome(tuple(samples), self._gpu_s, peak, changes)

    def _sample(self, number: int, arrival: Arrival) -> Sample:
        seconds = self.service_s(arrival)
        return Sample(number, arrival, seconds, arrival.at_s + arrival.slo_scale * seconds, seconds)

    def _leases_ended(self, now: float) -> int:
        """How many samples are done by them."""
        done = 0
        while self._events and self._events[0][0] <= now:
            _, _, number, lease = heapq.heappop(self._events)
            replica = next((r for r in self._replicas if r.number == number), None)
            if replica is None or replica.sample is None or replica.lease != lease:
                continue
            sample = replica.sample
            sample.remaining -= now - replica.began_at
            replica.sample = None
            if sample.remaining <= 1e-9:
                sample.end_s = now
                done += 1
            else:
                self._waiting.append(sample)
        return done

    def _scale(self, now: float, target: int) -> None:
        while len(self._replicas) < target:
            self._replicas.append(_Replica(next(self._numbers), now, now + self.start_s))
        while len(self._replicas) > target:
            gone = max(self._replicas, key=lambda r: (r.live_at > now, r.number))
            self._replicas.remove(gone)
            self._gpu_s += now - gone.asked_at
            if gone.sample is not None:
                gone.sample.remaining -= now - gone.began_at
                self._waiting.append(gone.sample)

    def _assign(self, now: float) -> None:
        free = [r for r in self._replicas if r.sample is None and r.live_at <= now]
        if not free or not self._waiting:
            return
        self._waiting.sort(key=lambda s: (now + s.remaining > s.deadline, s.deadline, s.number))
        for replica, sample in zip(free, self._waiting, strict=False):
            replica.sample, replica.began_at, replica.lease = sample, now, replica.lease + 1
            ends = now + min(sample.remaining, LEASE_S)
            heapq.heappush(self._events, (ends, sample.number, replica.number, replica.lease))
        del self._waiting[: len(free)]
