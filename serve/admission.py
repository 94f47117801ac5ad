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
class Supply:
    """Replicas that do the work.

    Args:
        now: that do it now; later: that do it `after_s` seconds from now, and from then on.
    """

    now: float
    later: float
    after_s: float = 0.0

    def until(self, seconds: float) -> float:
        """Seconds until so much work is done. Before the first replica serves none begins."""
        if self.now and (seconds <= self.now * self.after_s or self.now == self.later):
            return seconds / self.now
        return self.after_s + (seconds - self.now * self.after_s) / self.later


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


def judge(now: float, due: Sequence[Due], own: Due, around_s: float, supply: Supply) -> Verdict:
    """A request of `own.seconds` of denoising, and `around_s` seconds of other stages, beside what is due.

    Args:
        own: its deadline is that of all of it.
    """
    ordered = sorted(due, key=lambda each: each.deadline)
    before_s, finish, wait_s = 0.0, now, 0.0
    for _ in range(len(ordered) + 2):  # each time at least one more comes before it
        before_s = supply.until(math.fsum(d.seconds for d in ordered if d.deadline <= own.deadline + wait_s))
        finish = now + before_s + own.seconds + around_s
        needed_s = max(finish - own.deadline, _until_past(now, ordered, own, wait_s, supply))
        if needed_s <= wait_s:
            break
        wait_s = needed_s
    if wait_s > 0:
        before_s = supply.until(math.fsum(each.seconds for each in ordered if each.deadline <= own.deadline))
        finish = now + before_s + own.seconds + around_s
    return Verdict(before_s, finish, max(wait_s, MIN_WAIT_S) if wait_s > 0 else 0.0)


def _until_past(now: float, ordered: Sequence[Due], own: Due, wait_s: float, supply: Supply) -> float:
    """Seconds after which it is due behind all that it would make late; 0 where it makes nobody late.

    Waiting does not help those with later deadlines: the work is the same. It helps to be due after them.
    """
    total, past_s = 0.0, 0.0
    for each in ordered:
        total += each.seconds
        if not own.deadline + wait_s < each.deadline < math.inf:
            continue
        if now + supply.until(total) <= each.deadline < now + supply.until(total + own.seconds):
            past_s = max(past_s, each.deadline - own.deadline)
    return past_s
