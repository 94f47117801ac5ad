"""How much work comes: a level of its arrivals, smoothed over irregular times. Pure.

No trend: agents come in rounds, so that a trend sees a ramp in each of them. What such a ramp brings is work with
deadlines as soon as it is here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MIN_STEP_S = 0.5
"""Between two looks that count: shorter ones are mostly noise."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A stream of work as it was seen so far.

    Args:
        at: when it was last looked at, in seconds; None before the first look.
        total_s: seconds of a replica that had come by then.
        level: of them, a second.
    """

    at: float | None = None
    total_s: float = 0.0
    level: float = 0.0


def observed(arrivals: Arrivals, now: float, total_s: float, window_s: float) -> Arrivals:
    """After another look. A total that went down is that of another counter, which says nothing yet.

    Args:
        window_s: over which arrivals are smoothed.
    """
    if arrivals.at is None or total_s < arrivals.total_s:
        return Arrivals(now, total_s, arrivals.level)
    dt = now - arrivals.at
    if dt < MIN_STEP_S:
        return arrivals
    rate = (total_s - arrivals.total_s) / dt
    return Arrivals(now, total_s, arrivals.level + -math.expm1(-dt / window_s) * (rate - arrivals.level))
