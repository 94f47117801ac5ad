"""The denoising loop of one replica: plan → step → publish, in a thread of its own. Knows neither Ray nor HTTP.

Trajectories join and leave between steps. They live on the ranks; the loop knows how far each is, and what whoever
submitted it wants to see. Whoever that is gets its updates through a callback, called in the loop's thread.

All of torch's work in the process belongs in that thread, loading included: every thread that runs a parallel operation
gets an OpenMP pool of its own, and with two pools on two cores a small step took 7 to 17% longer (docs/log.md).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol

from raydiance.serve.engine.calibrate import calibrate
from raydiance.serve.engine.fleet import Fleet, RanksLost
from raydiance.serve.engine.orders import Outcome, Report, Standing, Start, Turn, Wish
from raydiance.serve.engine.rounds import Part, Wave, round_of
from raydiance.serve.engine.ways import Costs

log = logging.getLogger("ray.serve")


@dataclass(frozen=True, slots=True)
class Update:
    """After every step: how far it is and what was wished for; or what it raised when it began or was stepped alone."""

    step_index: int
    num_steps: int
    outcome: Outcome | None
    error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self.outcome is not None and self.outcome.result is not None


class Listener(Protocol):
    """Whoever submitted a trajectory; called in the loop's thread."""

    def wish(self, step_index: int) -> Wish:
        """What it wants to see after the step that ends at `step_index`."""
        ...

    def __call__(self, update: Update) -> None: ...


@dataclass(slots=True)
class _Member:
    start: Start
    listener: Listener
    standing: Standing | None = None

    @property
    def stands(self) -> Standing:
        """Where it is, once it has begun."""
        if self.standing is None:
            raise ValueError(f"trajectory {self.start.id} has not begun")
        return self.standing


class DenoisingLoop:
    """Args:
    build: called in the loop's thread; what it raises, the constructor raises.
    costs: of steps; what is measured is added to it.
    calibration_s: the longest that steps are measured for before the first one that counts, where there are ranks to
        choose among.
    max_batch_size: trajectories in one forward.
    max_batch_tokens: tokens in one forward, over its trajectories.
    observe: sees every part of a round that was stepped, and its seconds.
    lost: called when ranks are lost, before the loop's thread ends; what it held is not told.
    """

    fleet: Fleet

    def __init__(
        self,
        build: Callable[[], Fleet],
        *,
        max_batch_size: int,
        max_batch_tokens: int,
        costs: Costs | None = None,
        calibration_s: float = 0.0,
        observe: Callable[[Part, float], None] | None = None,
        lost: Callable[[RanksLost], None] | None = None,
    ) -> None:
        self.num_steps = 0
        self.num_forwards = 0
        self.num_rows = 0
        self.busy_s = 0.0
        self.costs = costs or Costs()
        self._max_batch_size = max_batch_size
        self._max_batch_tokens = max_batch_tokens
        self._calibration_s = calibration_s
        self._calibrated: set[int] = set()
        self._observe = observe
        self._lost = lost
        self._members: dict[str, _Member] = {}
        self._left: list[str] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._built: Future[Fleet] = Future()
        self._thread = threading.Thread(target=self._live, args=(build,), name="denoising-loop", daemon=True)
        self._thread.start()
        self.fleet = self._built.result()

    def join(self, start: Start, listener: Listener) -> None:
        """Begins it before the next step, and steps it from there. Raises ValueError if the id is here already."""
        with self._changed:
            if start.id in self._members:
                raise ValueError(f"trajectory {start.id} is being denoised already")
            self._members[start.id] = _Member(start, listener)
            self._changed.notify()

    def leave(self, member_id: str, listener: Listener) -> None:
        """Stops stepping it: at most the step in progress is finished. Nothing, where another has its id by now."""
        with self._changed:
            member = self._members.get(member_id)
            if member is not None and member.listener is listener:
                del self._members[member_id]
                self._left.append(member_id)
                self._changed.notify()

    def stop(self) -> None:
        """Ends the thread after the step in progress."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def num_active(self) -> int:
        return len(self._members)

    def _live(self, build: Callable[[], Fleet]) -> None:
        try:
            fleet = build()
        except Exception as e:  # noqa: BLE001 - the constructor raises it
            self._built.set_exception(e)
            return
        self._built.set_result(fleet)
        try:
            self._run(fleet)
        except RanksLost as e:
            log.error("the replica ends: %s", e)
            if self._lost is not None:
                self._lost(e)

    def _run(self, fleet: Fleet) -> None:
        while (members := self._wait(fleet)) is not None:
            started = time.perf_counter()
            ready = [m for m in members if m.standing is not None or self._begin(fleet, m)]
            for wave in self._plan(fleet, ready):
                self._advance(fleet, wave)
            self.busy_s += time.perf_counter() - started

    def _wait(self, fleet: Fleet) -> list[_Member] | None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._members or self._left) or self._stopping)
            left, self._left = self._left, []
            members = None if self._stopping else list(self._members.values())
        if left:
            fleet.drop(left)
        return members

    def _begin(self, fleet: Fleet, member: _Member) -> bool:
        """Whether it is there to be stepped."""
        try:
            standing, outcome = fleet.begin(member.start)
            if not standing.is_done:
                self._calibrate(fleet, member.start, standing)
                self._round([standing], fleet.size)  # raises where there is no way to step it
            member.standing = standing
        except RanksLost:
            raise
        except Exception as e:
            log.exception("trajectory %s could not begin", member.start.id)
            self._end(member, Update(0, member.start.spec.num_inference_steps, None, e))
            return False
        member.start = replace(member.start, embeddings=[], inputs=None, checkpoint=None)  # the ranks have them now
        if standing.is_done:
            self._end(member, Update(outcome.step_index, standing.num_steps, outcome))
            return False
        return True

    def _calibrate(self, fleet: Fleet, start: Start, standing: Standing) -> None:
        """With the first request that has guidance, and the first that has none: their ways differ."""
        if fleet.size > 1 and self._calibration_s and standing.num_branches not in self._calibrated:
            self._calibrated.add(standing.num_branches)
            calibrate(fleet, start, self.costs, self._calibration_s)

    def _end(self, member: _Member, update: Update) -> None:
        self.leave(member.start.id, member.listener)
        member.listener(update)

    def _plan(self, fleet: Fleet, members: list[_Member]) -> list[list[tuple[Part, list[list[_Member]]]]]:
        """Waves of parts, with the members of their batches."""
        if not members:
            return []
        waves = self._round([m.stands for m in members], fleet.size)
        return [[(part, [[members[i] for i in b] for b in part.batches]) for part in wave] for wave in waves]

    def _round(self, standings: Sequence[Standing], size: int) -> list[Wave]:
        limits = {"max_batch_size": self._max_batch_size, "max_batch_tokens": self._max_batch_tokens}
        return round_of(standings, size, self.costs, **limits)

    def _advance(self, fleet: Fleet, wave: list[tuple[Part, list[list[_Member]]]]) -> None:
        """One step of each. What raises is halved until the culprit is alone: no request fails for its neighbour."""
        here = [
            (part, [kept for batch in batches if (kept := [m for m in batch if self._members.get(m.start.id) is m])])
            for part, batches in wave
        ]
        here = [(part, batches) for part, batches in here if batches]
        reports = fleet.step([self._turn(part, batches) for part, batches in here])
        for (part, batches), report in zip(here, reports, strict=True):
            if isinstance(report, Report):
                self._publish(part, batches, report)
            else:
                self._halve(fleet, batches, report)

    def _turn(self, part: Part, batches: list[list[_Member]]) -> Turn:
        wishes = {m.start.id: m.listener.wish(m.stands.step_index + 1) for batch in batches for m in batch}
        return Turn(tuple(tuple(m.start.id for m in batch) for batch in batches), part.mesh, part.schedule, wishes)

    def _publish(self, part: Part, batches: list[list[_Member]], report: Report) -> None:
        members = [m for batch in batches for m in batch]
        if len(batches) == len(part.batches) and len(members) == sum(map(len, part.batches)):
            self.costs.record(part.shape, part.way, report.seconds)
        if self._observe is not None:
            self._observe(part, report.seconds)
        self.num_steps += len(members)
        self.num_forwards += report.num_forwards
        self.num_rows += report.num_rows
        for member in members:
            outcome = report.outcomes[member.start.id]
            member.standing = replace(member.stands, step_index=outcome.step_index)
            update = Update(outcome.step_index, member.stands.num_steps, outcome)
            if update.is_done:
                self._end(member, update)
            else:
                member.listener(update)

    def _halve(self, fleet: Fleet, batches: list[list[_Member]], error: Exception) -> None:
        members = [m for batch in batches for m in batch]
        if len(members) == 1:
            [member] = members
            log.error("trajectory %s failed", member.start.id, exc_info=error)
            self._end(member, Update(member.stands.step_index, member.start.spec.num_inference_steps, None, error))
            return
        middle = len(members) // 2
        halves = batches if len(batches) > 1 else [members[:middle], members[middle:]]
        for half in halves:
            for wave in self._plan(fleet, half):
                self._advance(fleet, wave)
