"""How much work is going to come: a level and a trend of its arrivals, smoothed over irregular times. Pure."""

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
        trend: how much `level` changes in a second.
    """

    at: float | None = None
    total_s: float = 0.0
    level: float = 0.0
    trend: float = 0.0


def observed(arrivals: Arrivals, now: float, total_s: float, window_s: float) -> Arrivals:
    """After another look. A total that went down is that of another counter, which says nothing yet.

    Args:
        window_s: over which arrivals are smoothed; their trend over twice as long.
    """
    if arrivals.at is None or total_s < arrivals.total_s:
        return Arrivals(now, total_s, arrivals.level, arrivals.trend)
    dt = now - arrivals.at
    if dt < MIN_STEP_S:
        return arrivals
    rate = (total_s - arrivals.total_s) / dt
    level = arrivals.level + -math.expm1(-dt / window_s) * (rate - arrivals.level)
    slope = (level - arrivals.level) / dt
    trend = arrivals.trend + -math.expm1(-dt / (2 * window_s)) * (slope - arrivals.trend)
    return Arrivals(now, total_s, level, trend)


def forecast(arrivals: Arrivals, ahead_s: float) -> float:
    """Seconds of a replica that come in a second, after `ahead_s`. A trend at most doubles or halves the level."""
    level = arrivals.level
    return min(max(level + arrivals.trend * ahead_s, level / 2), 2 * level)
