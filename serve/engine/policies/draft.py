"""A plan in the making: batches, the ranks each is to have, and why the others wait."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from raydiance.parallel.mesh import Subgroup
from raydiance.serve.engine.policies.base import Assignment, Plan, Ranks, Reason, Rules
from raydiance.serve.engine.policies.kinds import Steps
from raydiance.serve.engine.policies.needs import Need
from raydiance.serve.engine.policies.room import Room
from raydiance.serve.engine.policies.triage import ends


@dataclass(slots=True, eq=False)
class Batch:
    """Args:
    sum_tokens: over its trajectories.
    seconds: of its step.
    pace_s: what steps may take on average for every member to be on time.
    """

    needs: list[Need]
    degree: int
    seconds: float
    num_tokens: int
    num_branches: int
    sum_tokens: int
    pace_s: float

    @property
    def is_kept(self) -> bool:
        return any(need.is_kept for need in self.needs)


@dataclass(eq=False)
class Draft:
    """Args:
    open: by key, the last batch, which others may join.
    """

    now: float
    ranks: Ranks
    steps: Steps
    rules: Rules
    room: Room = field(init=False)
    batches: list[Batch] = field(default_factory=list)
    open: dict[Hashable, Batch] = field(default_factory=dict)
    waiting: dict[str, Reason] = field(default_factory=dict)
    _gathered: list[Subgroup] = field(default_factory=list)
    _vain: float = math.inf

    def __post_init__(self) -> None:
        self.room = Room(self.ranks.free)

    def start(self, need: Need, degree: int) -> bool:
        """Gives a trajectory ranks of its own, where there is room for so many and the tier may have them."""
        room, kind = self.room, need.kind
        if not room.fits(degree):
            return False
        if not self.may_take(need, degree):
            need.blocked = Reason.HEADROOM
            return False
        room.take(degree)
        tokens = kind.num_tokens
        batch = Batch([need], degree, kind.alone[degree], tokens, kind.num_branches, tokens, need.pace_s)
        self.batches.append(batch)
        self.open[kind.key] = batch
        return True

    def may_take(self, need: Need, num_ranks: int) -> bool:
        """Whether the head-room remains, where it is owed."""
        headroom = self.rules.headroom
        owed = headroom > 0 and need.candidate.tier == "batch" and need.reason is not Reason.AGED
        return not owed or self.room.num_free - num_ranks >= headroom

    def wait(self, *needs: Need) -> None:
        for need in needs:
            self.waiting[need.candidate.id] = need.blocked

    def with_one_more(self, need: Need, batch: Batch) -> float | None:
        """Seconds of the step with it; None where limits or layouts do not allow that."""
        kind, rules = need.kind, self.rules
        if len(batch.needs) >= rules.max_batch_size or batch.sum_tokens + kind.num_tokens > rules.max_batch_tokens:
            return None
        num_tokens, num_branches = max(batch.num_tokens, kind.num_tokens), max(batch.num_branches, kind.num_branches)
        return self.steps.seconds(num_tokens, len(batch.needs) + 1, num_branches, batch.degree)

    def join(self, need: Need, batch: Batch, seconds: float) -> None:
        """Args: seconds: as `with_one_more` says."""
        kind = need.kind
        batch.needs.append(need)
        batch.seconds = seconds
        batch.num_tokens = max(batch.num_tokens, kind.num_tokens)
        batch.num_branches = max(batch.num_branches, kind.num_branches)
        batch.sum_tokens += kind.num_tokens
        batch.pace_s = min(batch.pace_s, need.pace_s)

    def gather(self, degree: int) -> bool:
        """Leaves the free ranks of a subgroup alone that has ranks in the middle of a step: that which is free first.

        So what needs many ranks gets them, once those steps have ended. False where there is none, or what was given
        ranks already has no room beside it.
        """
        if degree >= self._vain:
            return False
        free, until, now = self.ranks.free, ends(self.ranks), self.now
        found = []
        for start in range(0, self.ranks.size - degree + 1, degree):
            busy = [rank for rank in range(start, start + degree) if rank not in free]
            if busy:
                found.append((max(until.get(rank, now) for rank in busy), len(busy), start))
        for _, _, start in sorted(found):
            block = Subgroup(start, degree)
            apart = all(start + degree <= b.start or b.start + b.size <= start for b in self._gathered)
            if apart and self.room.withhold(block):
                self._gathered.append(block)
                return True
        self._vain = degree
        return False

    def plan(self) -> Plan:
        places = self.room.places([batch.degree for batch in self.batches])
        assignments = tuple(
            Assignment(tuple([need.candidate.id for need in batch.needs]), place, batch.needs[0].reason)
            for batch, place in zip(self.batches, places, strict=True)
        )
        return Plan(assignments, self.waiting)
