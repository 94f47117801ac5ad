"""What a trajectory needs to be on time: how many ranks, how many GPU-seconds, and how long it can wait. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from raydiance.serve.engine.policies.base import Candidate, Reason, Rules, Stepping
from raydiance.serve.engine.policies.kinds import Kind, Steps, kinds_of

TOLERANCE_S = 1e-6
"""What sums of seconds are wrong by, on a clock that counts from 1970."""


@dataclass(slots=True, eq=False)
class Need:
    """Args:
    degree: the fewest ranks with which its deadline is met, or that take it at all.
    step_s: of a step alone on so many ranks.
    cost: GPU-seconds of all that is left.
    slack: seconds that it can wait and be on time nevertheless, stepped alone on `degree` ranks; inf without a
        deadline, -inf where no degree meets it.
    pace_s: what its steps may take on average.
    reason: why it is stepped, if it is.
    blocked: why it is not, if it is not.
    is_kept: its deadline is one of those to be met.
    is_stepping: in the middle of a step, so that only what comes after it counts.
    """

    candidate: Candidate
    kind: Kind
    degree: int = 0
    step_s: float = 0.0
    cost: float = 0.0
    slack: float = math.inf
    pace_s: float = math.inf
    reason: Reason = Reason.IN_ORDER
    blocked: Reason = Reason.OTHERS_FIRST
    is_kept: bool = False
    is_stepping: bool = False

    @property
    def slack_at_most(self) -> float:
        """Seconds that it can wait if it goes on as fast as it can."""
        return self.slack + self.candidate.remaining_steps * (self.step_s - self.kind.rates[0])


def appraise(
    now: float,
    candidates: Sequence[Candidate],
    steps: Steps,
    rules: Rules,
    *,
    stepping: Sequence[Stepping] = (),
    batched: bool = False,
) -> list[Need]:
    """Of every candidate, and of those in the middle of a step that have others left: by deadline.

    Args:
        batched: whether a deadline that leaves time for it is priced in batches.
    """
    after = {s.candidate.id: s.until for s in stepping if s.candidate.remaining_steps > 0}
    everyone = [*candidates, *(s.candidate for s in stepping if s.candidate.id in after)]
    everyone.sort(key=attrgetter("deadline", "id"))
    kinds = kinds_of(everyone, steps, rules, batched=batched)
    if not after:
        return [_need(now, candidate, kind) for candidate, kind in zip(everyone, kinds, strict=True)]
    needs = []
    for candidate, kind in zip(everyone, kinds, strict=True):
        need = _need(after.get(candidate.id, now), candidate, kind)
        need.is_stepping = candidate.id in after
        needs.append(need)
    return needs


def _need(now: float, candidate: Candidate, kind: Kind) -> Need:
    degree, deadline = kind.smallest, candidate.deadline
    if not degree:
        return Need(candidate, kind, blocked=Reason.NO_LAYOUT)
    if deadline == math.inf:
        return Need(candidate, kind, degree, kind.alone[degree])
    num_steps, left_s = candidate.remaining_steps, deadline - now + TOLERANCE_S
    pace_s = left_s / num_steps
    found = kind.within(pace_s)
    if found is None:
        return Need(candidate, kind, degree, kind.alone[degree], slack=-math.inf, blocked=Reason.TOO_LATE)
    option, step_cost = found
    alone_s = option.alone_s
    slack = left_s - num_steps * alone_s
    return Need(candidate, kind, option.degree, alone_s, num_steps * step_cost, slack, pace_s)
