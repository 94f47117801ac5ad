"""Whether a request can be done in time, from what is to be done before it. Pure.

The work of a model's denoisers is done in the order of deadlines. A request is let in where everything due by each
deadline, its own work included, fits before that deadline; what is late already is not made later by refusing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MIN_WAIT_S = 0.1


@dataclass(frozen=True, slots=True)
class Due:
    """Work that is to be done. Args: seconds: of one denoiser; deadline: Unix seconds, inf without one."""

    deadline: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Args:
    starts_in_s: until what comes before it is done.
    finish: when it should be done, in Unix seconds.
    retry_after_s: after which it would be let in; 0 where it is.
    """

    starts_in_s: float
    finish: float
    retry_after_s: float

    @property
    def is_admitted(self) -> bool:
        return self.retry_after_s == 0


def judge(now: float, due: Sequence[Due], own: Due, around_s: float, capacity: float) -> Verdict:
    """A request of `own.seconds` of denoising, and `around_s` seconds of other stages, beside what is due.

    Args:
        own: its deadline is that of all of it.
        capacity: seconds of work that are done in a second: replicas, times what batches win.
    """
    before_s = math.fsum(each.seconds for each in due if each.deadline <= own.deadline) / capacity
    own_s = own.seconds / capacity if capacity < 1 else own.seconds
    finish = now + before_s + own_s + around_s
    wait_s = max(finish - own.deadline, _delay_of_others(now, due, own, capacity), 0.0)
    return Verdict(before_s, finish, max(wait_s, MIN_WAIT_S) if wait_s > 0 else 0.0)


def _delay_of_others(now: float, due: Sequence[Due], own: Due, capacity: float) -> float:
    """By how much it would make the worst of those with later deadlines late, that are not late without it."""
    later = sorted(each.deadline for each in due if own.deadline < each.deadline < math.inf)
    worst = 0.0
    ordered = sorted(due, key=lambda each: each.deadline)
    total, i = 0.0, 0
    for deadline in later:
        while i < len(ordered) and ordered[i].deadline <= deadline:
            total += ordered[i].seconds
            i += 1
        lateness = now + total / capacity - deadline
        if lateness <= 0:
            worst = max(worst, lateness + own.seconds / capacity)
    return worst
