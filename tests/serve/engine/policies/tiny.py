"""Exact small worlds: a policy run to its end step by step, and the best that any schedule could have done."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from tests.serve.engine.policies.tables import Table, random_table

from raydiance.serve.engine.policies.base import Candidate, Policy, Prices, Ranks, Rules, Stepping

ALONE = Rules(max_batch_size=1, patience_s=math.inf)


@dataclass
class World:
    """Steps end when their price says; a policy is asked whenever ranks are free and something waits.

    Args:
        arrivals: when each comes, by id; 0 for those that are not named.
        finished: by id, when its last step ended.
        steps: by id, when each of its steps began.
    """

    policy: Policy
    prices: Prices
    size: int
    rules: Rules = ALONE
    told: bool = True
    arrivals: dict[str, float] = field(default_factory=dict)
    finished: dict[str, float] = field(default_factory=dict)
    steps: dict[str, list[float]] = field(default_factory=dict)

    def run(self, candidates: Sequence[Candidate], until: float = math.inf) -> dict[str, float]:
        waiting = {c.id: replace(c, since=self.arrivals.get(c.id, c.since)) for c in candidates}
        kept_since: dict[str, float] = {}
        stepping: list[Stepping] = []
        now = 0.0
        while (waiting or stepping) and now < until:
            free = frozenset(range(self.size)).difference(*(s.ranks.ranks for s in stepping))
            here = [c for c in waiting.values() if self.arrivals.get(c.id, 0.0) <= now]
            if free and here:
                ranks = Ranks(self.size, free, tuple(stepping) if self.told else ())
                plan = self.policy.plan(now, here, ranks, self.prices, self.rules)
                stepped = set()
                for assignment in plan.assignments:
                    members = [waiting.pop(its_id) for its_id in assignment.ids]
                    shape = replace(members[0].shape, num_rows=len(members))
                    seconds = self.prices.seconds(shape, assignment.ranks.size)
                    assert seconds is not None
                    assert free.issuperset(assignment.ranks.ranks)
                    free -= frozenset(assignment.ranks.ranks)
                    for c in members:
                        stepped.add(c.id)
                        self.steps.setdefault(c.id, []).append(now)
                        since = kept_since.setdefault(c.id, now)
                        left = replace(
                            c, remaining_steps=c.remaining_steps - 1, since=now + seconds, running_since=since
                        )
                        stepping.append(Stepping(left, assignment.ranks, now + seconds))
                for c in here:
                    if c.id not in stepped:
                        kept_since.pop(c.id, None)
                        waiting[c.id] = replace(c, running_since=None)
            coming = [t for c in waiting if (t := self.arrivals.get(c, 0.0)) > now]
            now = min([s.until for s in stepping] + coming)
            for s in [s for s in stepping if s.until <= now]:
                stepping.remove(s)
                if s.candidate.remaining_steps:
                    waiting[s.candidate.id] = s.candidate
                else:
                    self.finished[s.candidate.id] = s.until
        return self.finished


def most_met(candidates: Sequence[Candidate], prices: Table, size: int) -> int:
    """Deadlines that the best schedule meets on one or two ranks, of steps that are not batched and not interrupted."""
    cost = [{n: prices.seconds(c.shape, n) for n in (1, 2) if n <= size} for c in candidates]
    deadlines = [c.deadline for c in candidates]
    jobs = range(len(candidates))

    @cache
    def best(now: float, left: tuple[int, ...], busy: tuple[tuple[float, int, int], ...]) -> int:
        """`busy`: when a step ends, on how many ranks, and whose; `left` are the steps after it."""
        at = {job: end for end, _, job in busy}
        live = tuple(
            n if n and at.get(j, now) + n * min(s for s in cost[j].values() if s) <= deadlines[j] else 0
            for j, n in zip(jobs, left, strict=True)
        )
        if live != left:
            return best(now, live, busy)
        free = size - sum(width for _, width, _ in busy)
        found = 0
        if busy:  # nothing more is begun before the next step ends
            end = busy[0][0]
            found = best(end, left, tuple(b for b in busy if b[0] > end))
        for job in jobs:
            if left[job] and job not in at:
                for width, seconds in cost[job].items():
                    if width <= free and seconds is not None:
                        last = left[job] == 1
                        after = tuple(n - (j == job) for j, n in zip(jobs, left, strict=True))
                        now_busy = tuple(sorted((*busy, (now + seconds, width, job))))
                        found = max(found, (last and now + seconds <= deadlines[job]) + best(now, after, now_busy))
        return found

    return best(0.0, tuple(c.remaining_steps for c in candidates), ())


def random_case(seed: int) -> tuple[list[Candidate], Table, int]:
    """At most four trajectories on one or two ranks; deadlines from what none can meet to what all can."""
    rng = random.Random(seed)
    size, kinds, count = rng.choice((1, 2)), rng.randint(1, 3), rng.randint(1, 4)
    table = random_table(rng, kinds, size)
    candidates, work = [], 0.0
    for i in range(count):
        tokens, steps = rng.randint(1, kinds), rng.randint(1, 4)
        work += steps * table.seconds_of[tokens][1] / size
        candidates.append(Candidate(str(i), tokens, tokens, 1, steps))
    tight = rng.choice((0.5, 0.8, 1.0, 1.3))
    return (
        [replace(c, deadline=float(max(1, round(rng.uniform(0.2, 1.2) * tight * work)))) for c in candidates],
        table,
        size,
    )
