"""The simulated replica: arrivals and ends of steps are events, and at each the policy is asked what steps next.

The policy sees what the denoising loop would show it: the trajectories that are not in the middle of a step, in the
order in which they came, the ranks that are free, and what the others do until when. What it answers is checked.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from sim_prices import Fixed, Roofline, isolated_s
from sim_results import Outcome, Run, Stint, sample_id
from trace_arrival import Arrival

from raydiance.parallel.mesh import Subgroup
from raydiance.serve.engine.policies.base import Assignment, Candidate, Policy, Ranks, Rules, Stepping
from raydiance.serve.engine.ways import Shape

POLL_S = 0.1
"""Where all ranks are free and the policy starts nothing, it is asked again after so long: it may wait for a round."""
STUCK_S = 600.0


class PlanBroken(RuntimeError):
    """A policy answered what cannot be done."""


class Stuck(RuntimeError):
    """A policy starts nothing, though all ranks are free and there is work."""


@dataclass(slots=True)
class _Request:
    arrival: Arrival
    shape: Shape
    deadline_s: float
    unfinished: int
    finish_s: float = math.inf
    gpu_s: float = 0.0
    preemptions: int = 0
    degree_changes: int = 0
    longest_wait_s: float = 0.0


@dataclass(slots=True, order=True)
class _Sample:
    """Args:
    number: in the order of arrival.
    ranks: of its last step.
    running_since: when it was given them, if it has kept them since.
    candidate: as the policy sees it; made anew only when it changed, which for most of a queue is seldom.
    """

    number: int
    id: str = field(compare=False)
    request: _Request = field(compare=False)
    remaining: int = field(compare=False)
    since: float = field(compare=False)
    ranks: Subgroup | None = field(default=None, compare=False)
    running_since: float | None = field(default=None, compare=False)
    candidate: Candidate = field(init=False, compare=False)

    def __post_init__(self) -> None:
        self.candidate = self.shown(self.since, self.remaining)

    def shown(self, since: float, remaining: int) -> Candidate:
        arrival, shape = self.request.arrival, self.request.shape
        return Candidate(
            id=self.id,
            key=arrival.dimensions,
            num_tokens=shape.num_tokens,
            num_branches=shape.num_branches,
            remaining_steps=remaining,
            deadline=self.request.deadline_s,
            tier=arrival.tier,
            tenant=arrival.tenant,
            since=since,
            running_since=self.running_since,
        )


class Simulation:
    """One run, of one policy on one trace.

    Args:
        trace: in the order of time.
        shape_of: an arrival's step, of one sample alone.
        stint_s: several steps of a batch are planned at once, as many as fit into so long, and at least one; 0 plans
            every step. No stint is longer than what a member has left.
        give_up_below: ends the run as soon as this attainment cannot be reached any more.
        keep: stints are kept, for `mistakes`.
    """

    def __init__(
        self,
        trace: Sequence[Arrival],
        policy: Policy,
        prices: Roofline | Fixed,
        shape_of: Callable[[Arrival], Shape],
        num_ranks: int,
        rules: Rules | None = None,
        *,
        window_s: float | None = None,
        stint_s: float = 0.0,
        give_up_below: float = 0.0,
        keep: bool = False,
    ) -> None:
        self._policy, self._prices, self._rules = policy, prices, rules or Rules()
        self._num_ranks, self._stint_s, self._keep, self._window_s = num_ranks, stint_s, keep, window_s
        self._requests = [_request(arrival, shape_of(arrival), prices, num_ranks) for arrival in trace]
        self._deadlines = sorted((r.deadline_s, i) for i, r in enumerate(self._requests))
        self._num_overdue, self._num_missed = 0, 0
        self._most_missed = (1 - give_up_below) * len(trace)
        self._next, self._num_samples, self._num_plans = 0, 0, 0
        self._free = set(range(num_ranks))
        self._ready: list[_Sample] = []
        self._running: list[tuple[float, int, Stint, list[_Sample]]] = []
        self._stepping: dict[str, Stepping] = {}
        self._stints: list[Stint] = []
        self._busy_gpu_s = 0.0

    def run(self) -> Run:
        """Raises PlanBroken and Stuck."""
        idle_since: float | None = None
        now = 0.0
        while self._next < len(self._requests) or self._running or self._ready:
            upcoming = [self._requests[self._next].arrival.at_s] if self._next < len(self._requests) else []
            upcoming += [self._running[0][0]] if self._running else [now + POLL_S] if self._ready else []
            now = min(upcoming)
            ended = self._end(now)
            self._admit(now)
            if self._given_up(now):
                break
            if self._free and self._ready:
                self._plan(now, ended)
            idle = self._ready and not self._running
            idle_since = (now if idle_since is None else idle_since) if idle else None
            if idle_since is not None and now - idle_since > STUCK_S:
                raise Stuck(f"nothing was started in {STUCK_S:g} s up to {now:.1f} s: {len(self._ready)} wait")
        return self._results(gave_up=bool(self._running or self._ready or self._next < len(self._requests)))

    def _end(self, now: float) -> list[_Sample]:
        """Stints that end now free their ranks. Returns their samples that are not done."""
        ended = []
        while self._running and self._running[0][0] == now:
            _, _, stint, samples = heapq.heappop(self._running)
            self._free.update(stint.assignment.ranks.ranks)
            for sample in samples:
                sample.remaining -= stint.num_steps
                sample.since = now
                sample.candidate = self._stepping.pop(sample.id).candidate
                if sample.remaining:
                    insort(self._ready, sample)
                    ended.append(sample)
                    continue
                sample.request.unfinished -= 1
                if not sample.request.unfinished:
                    sample.request.finish_s = now
        return ended

    def _admit(self, now: float) -> None:
        while self._next < len(self._requests) and self._requests[self._next].arrival.at_s <= now:
            request = self._requests[self._next]
            for i in range(request.arrival.num):
                sample = _Sample(self._num_samples, sample_id(self._next, i), request, request.arrival.steps, now)
                self._ready.append(sample)
                self._num_samples += 1
            self._next += 1

    def _given_up(self, now: float) -> bool:
        while self._num_overdue < len(self._deadlines) and self._deadlines[self._num_overdue][0] < now:
            request = self._requests[self._deadlines[self._num_overdue][1]]
            self._num_missed += request.finish_s > request.deadline_s
            self._num_overdue += 1
        return self._num_missed > self._most_missed

    def _plan(self, now: float, ended: Iterable[_Sample]) -> None:
        candidates = [sample.candidate for sample in self._ready]
        ranks = Ranks(self._num_ranks, frozenset(self._free), tuple(self._stepping.values()))
        plan = self._policy.plan(now, candidates, ranks, self._prices, self._rules)
        self._num_plans += 1
        kept = {sample.id: sample.ranks for sample in ended}
        by_id = {sample.id: sample for sample in self._ready}
        for assignment in plan.assignments:
            self._start(now, assignment, by_id, kept)
        self._ready = list(by_id.values())
        for sample in ended:
            if sample.id in by_id:
                sample.request.preemptions += 1
                sample.running_since = None
                sample.candidate = sample.shown(sample.since, sample.remaining)

    def _start(
        self, now: float, assignment: Assignment, by_id: dict[str, _Sample], kept: dict[str, Subgroup | None]
    ) -> None:
        """Takes the samples out of `by_id`."""
        ranks, ids = assignment.ranks, assignment.ids
        if not ids or len(set(ids)) < len(ids) or not by_id.keys() >= set(ids):
            raise PlanBroken(f"at {now:.3f} s {ids} are not trajectories that wait, each once")
        if not self._free.issuperset(ranks.ranks):
            raise PlanBroken(f"at {now:.3f} s {ranks} are not all free: {sorted(self._free)}")
        samples = [by_id.pop(each) for each in ids]
        if len({sample.candidate.key for sample in samples}) > 1:
            raise PlanBroken(f"at {now:.3f} s {ids} cannot share a forward")
        one = samples[0].request.shape
        step_s = self._prices.seconds(Shape(one.num_tokens, len(samples), one.num_branches), ranks.size)
        if step_s is None:
            raise PlanBroken(f"at {now:.3f} s {ids} cannot step on {ranks.size} ranks")
        num_steps = min(max(1, int(self._stint_s / step_s)), min(sample.remaining for sample in samples))
        stint = Stint(now, now + num_steps * step_s, num_steps, assignment)
        self._free.difference_update(ranks.ranks)
        heapq.heappush(self._running, (stint.end_s, samples[0].number, stint, samples))
        gpu_s = (stint.end_s - now) * ranks.size
        self._busy_gpu_s += gpu_s
        for sample in samples:
            request = sample.request
            request.gpu_s += gpu_s / len(samples)
            request.longest_wait_s = max(request.longest_wait_s, now - sample.since)
            request.degree_changes += sample.ranks is not None and sample.ranks.size != ranks.size
            if kept.get(sample.id) != ranks:
                sample.running_since = now
            sample.ranks = ranks
            after = sample.shown(stint.end_s, sample.remaining - num_steps)
            self._stepping[sample.id] = Stepping(after, ranks, stint.end_s)
        if self._keep:
            self._stints.append(stint)

    def _results(self, gave_up: bool) -> Run:
        outcomes = tuple(
            Outcome(r.arrival, r.finish_s, r.deadline_s, r.gpu_s, r.preemptions, r.degree_changes, r.longest_wait_s)
            for r in self._requests
        )
        window_s = max(r.finish_s for r in self._requests) if self._window_s is None else self._window_s
        return Run(self._num_ranks, window_s, outcomes, self._busy_gpu_s, self._num_plans, tuple(self._stints), gave_up)


def _request(arrival: Arrival, shape: Shape, prices: Roofline | Fixed, num_ranks: int) -> _Request:
    deadline_s = arrival.at_s + arrival.slo_scale * isolated_s(arrival, shape, prices, num_ranks)
    return _Request(arrival, shape, deadline_s, arrival.num)
