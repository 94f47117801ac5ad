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
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from raydiance.serve.engine import memory
from raydiance.serve.engine.calibrate import calibrate
from raydiance.serve.engine.fleet import Fleet, RanksLost
from raydiance.serve.engine.members import Listener, Member, Update
from raydiance.serve.engine.orders import Report, Standing, Start, Turn
from raydiance.serve.engine.parts import Part
from raydiance.serve.engine.planner import Planner
from raydiance.serve.engine.served import Served
from raydiance.serve.engine.terms import Terms
from raydiance.serve.engine.ways import Costs, Shape

log = logging.getLogger("ray.serve")
Work = list[tuple[Part, list[list[Member]]]]


HELD_S = 0.05
"""Between two looks at what a policy leaves waiting while ranks are free."""


class DenoisingLoop:
    """Args:
    build: called in the loop's thread; what it raises, the constructor raises.
    planner: who steps next, and how; what steps cost is added to its costs.
    calibration_s: the longest that steps are measured for before the first one that counts, where there are ranks to
        choose among.
    observe: sees every part that was stepped, and its seconds.
    lost: called when ranks are lost, before the loop's thread ends; what it held is not told.
    """

    fleet: Fleet

    def __init__(
        self,
        build: Callable[[], Fleet],
        planner: Planner,
        *,
        calibration_s: float = 0.0,
        observe: Callable[[Part, float], None] | None = None,
        lost: Callable[[RanksLost], None] | None = None,
    ) -> None:
        self.num_steps = 0
        self.num_forwards = 0
        self.num_rows = 0
        self.busy_s = 0.0
        self.decisions: Counter[str] = Counter()
        self._planner = planner
        self._calibration_s = calibration_s
        self._calibrated: set[int] = set()
        self._observe = observe
        self._lost = lost
        self._served = Served()
        self._members: dict[str, Member] = {}
        self._left: list[str] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._built: Future[Fleet] = Future()
        self._thread = threading.Thread(target=self._live, args=(build,), name="denoising-loop", daemon=True)
        self._thread.start()
        self.fleet = self._built.result()

    @property
    def costs(self) -> Costs:
        return self._planner.costs

    def join(self, start: Start, listener: Listener) -> None:
        """Begins it before the next step, and steps it from there; one that is paused at the same step goes on.

        Raises ValueError if the id is here already and not paused.
        """
        with self._changed:
            member = self._members.get(start.id)
            if member is not None and not member.is_paused:
                raise ValueError(f"trajectory {start.id} is being denoised already")
            if member is not None and member.stands.step_index == start.step:
                member.begin_lease(start.terms, listener)
            else:
                self._members[start.id] = Member(start, listener, since=time.time())
            self._changed.notify()

    def rejoin(self, member_id: str, step: int, terms: Terms, listener: Listener) -> bool:
        """Goes on with one that is paused at a step; False where there is none."""
        with self._changed:
            member = self._members.get(member_id)
            if member is None or not member.is_paused or member.stands.step_index != step:
                return False
            member.begin_lease(terms, listener)
            self._changed.notify()
            return True

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
            if wave := self._plan(ready, fleet.size):
                self._advance(fleet, wave)
                self.busy_s += time.perf_counter() - started
            elif ready:
                with self._changed:
                    self._changed.wait(HELD_S)

    def _wait(self, fleet: Fleet) -> list[Member] | None:
        """Those that are to be stepped, when there are any; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._active() or self._left) or self._stopping)
            left, self._left = self._left, []
            members = None if self._stopping else self._active()
        if left:
            fleet.drop(left)
        return members

    def _active(self) -> list[Member]:
        return [member for member in self._members.values() if not member.is_paused]

    def _begin(self, fleet: Fleet, member: Member) -> bool:
        """Whether it is there to be stepped."""
        try:
            standing, outcome = fleet.begin(member.start)
            if not standing.is_done:
                self._calibrate(fleet, member.start, standing)
                self._planner.check(Shape(standing.num_tokens, 1, standing.num_branches), fleet.size)
            member.standing = standing
        except RanksLost:
            raise
        except Exception as e:
            log.exception("trajectory %s could not begin", member.start.id)
            self._end(member, member.update(None, e))
            return False
        member.start = replace(member.start, embeddings=[], inputs=None, checkpoint=None)  # the ranks have them now
        if standing.is_done:
            self._end(member, member.update(outcome))
            return False
        return True

    def _calibrate(self, fleet: Fleet, start: Start, standing: Standing) -> None:
        """With the first request that has guidance, and the first that has none: their ways differ."""
        if fleet.size > 1 and self._calibration_s and standing.num_branches not in self._calibrated:
            self._calibrated.add(standing.num_branches)
            calibrate(fleet, start, self.costs, self._calibration_s)

    def _end(self, member: Member, update: Update) -> None:
        self.leave(member.start.id, member.listener)
        member.listener(update)

    def _plan(self, members: list[Member], size: int) -> Work:
        """The parts of the next step, with the members of their batches."""
        if not members:
            return []
        now = time.time()
        shares = {m.start.terms.tenant: m.start.terms.weight for m in members}
        candidates = [m.candidate for m in members]
        wave, reasons = self._planner.next(now, candidates, size, shares, self._served.at(now))
        stepped = {i for part in wave for batch in part.batches for i in batch}
        for i, member in enumerate(members):
            reason = reasons[member.start.id]
            member.decisions[reason] += 1
            self.decisions[reason.name.lower()] += 1
            if i not in stepped:
                member.running_since = None
            elif member.running_since is None:
                member.running_since = now
        return [(part, [[members[i] for i in batch] for batch in part.batches]) for part in wave]

    def _advance(self, fleet: Fleet, work: Work) -> None:
        """One step of each. What raises is halved until the culprit is alone: no request fails for its neighbour."""
        here = [
            (part, [kept for batch in batches if (kept := [m for m in batch if self._members.get(m.start.id) is m])])
            for part, batches in work
        ]
        here = [(part, batches) for part, batches in here if batches]
        reports = fleet.step([self._turn(part, batches) for part, batches in here])
        for (part, batches), report in zip(here, reports, strict=True):
            if isinstance(report, Report):
                self._publish(part, batches, report)
            else:
                self._halve(fleet, part, batches, report)

    def _turn(self, part: Part, batches: list[list[Member]]) -> Turn:
        wishes = {m.start.id: m.listener.wish(m.stands.step_index + 1) for batch in batches for m in batch}
        return Turn(tuple(tuple(m.start.id for m in batch) for batch in batches), part.mesh, part.schedule, wishes)

    def _publish(self, part: Part, batches: list[list[Member]], report: Report) -> None:
        members, now = [m for batch in batches for m in batch], time.time()
        if len(batches) == len(part.batches) and len(members) == sum(map(len, part.batches)):
            self.costs.record(part.shape, part.way, report.seconds)
        if self._observe is not None:
            self._observe(part, report.seconds)
        self.num_steps += len(members)
        self.num_forwards += report.num_forwards
        self.num_rows += report.num_rows
        seconds, size = report.seconds / sum(m.candidate.shape.work for m in members), part.mesh.subgroup.size
        for member in members:
            self._told(member, report, now, seconds * member.candidate.shape.work, size)

    def _told(self, member: Member, report: Report, now: float, busy_s: float, size: int) -> None:
        """Where a member is after a step, and its share of what that took."""
        outcome = report.outcomes[member.start.id]
        member.standing = replace(member.stands, step_index=outcome.step_index)
        member.busy_s += busy_s
        member.gpu_seconds += busy_s * size
        member.since = now
        self._served.add(member.start.terms.tenant, busy_s * size, now)
        update = member.update(outcome)
        if update.is_done:
            self._end(member, update)
            return
        with self._changed:
            member.is_paused = outcome.is_paused
        member.listener(update)

    def _halve(self, fleet: Fleet, part: Part, batches: list[list[Member]], error: Exception) -> None:
        members = [m for batch in batches for m in batch]
        if len(members) == 1:
            [member] = members
            log.error("trajectory %s failed", member.start.id, exc_info=error)
            self._end(member, member.update(None, error))
            return
        if memory.ran_out(error) and len(batches) == 1:
            self._planner = self._planner.below(sum(m.stands.num_tokens for m in members))
        middle = len(members) // 2
        for half in batches if len(batches) > 1 else [members[:middle], members[middle:]]:
            smaller = self._planner.part(part.mesh.subgroup, range(len(half)), [m.candidate for m in half])
            self._advance(fleet, [(smaller, [half])])
