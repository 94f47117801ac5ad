"""Requests that come in sessions: agents that fan out in rounds, and people at a screen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from statistics import NormalDist

from trace_arrival import Arrival
from trace_mix import Mix, tenant
from trace_points import points

FAN_OUT = (4, 8)
THINKING_S = (1.0, 3.0)
MEAN_ROUNDS = 3.0

# Alibaba's GenTD26 trace of an image service
NUM_SHARES = {1: 0.58, 4: 0.19, 8: 0.15, 2: 0.08}
"""Of requests, by their images."""
GAP_QUANTILES_S = {0.1: 26.0, 0.5: 64.0, 0.9: 213.0}
"""Between requests of a session."""
SESSION_ENDS_S = 600.0
"""A gap of ten minutes ends a session."""
LONG_SESSION, LONG_SHARE = 5, 0.64
"""Of requests, those in sessions of so many and more."""
PEAK_OVER_MEAN = 9.0
"""Requests in the busiest hour of a day, over the mean of its hours."""
NIGHT = 0.03
"""Rate of the quietest hour, as a share of the busiest one's. Assumed: the trace's description does not tell."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Seconds between requests: a log-normal, shifted so that it has all three quantiles, and cut off.

    Args:
        shift_s: the shortest.
        mu, sigma: of the logarithm of what is above the shift.
    """

    shift_s: float
    mu: float
    sigma: float

    def draw(self, rng: Random) -> float:
        """Below SESSION_ENDS_S: what is longer is drawn again."""
        while (gap_s := self.shift_s + rng.lognormvariate(self.mu, self.sigma)) >= SESSION_ENDS_S:
            pass
        return gap_s


def fit_gaps(low_s: float, median_s: float, high_s: float) -> Gaps:
    """Through the quantiles 0.1, 0.5, 0.9, before the cut.

    With the shift taken off, the median is the geometric mean of the outer two, as in every log-normal.
    """
    shift_s = (low_s * high_s - median_s**2) / (low_s + high_s - 2 * median_s)
    sigma = math.log((high_s - shift_s) / (median_s - shift_s)) / NormalDist().inv_cdf(0.9)
    return Gaps(shift_s, math.log(median_s - shift_s), sigma)


def ending_chance(long: int, share: float) -> float:
    """p of the geometric distribution on 1, 2, … of which sessions of `long` and more hold this share of requests.

    E[K; K ≥ k] / E[K] = (1 - p)^(k - 1) (1 + (k - 1) p), which falls with p.
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        p = (low + high) / 2
        if (1 - p) ** (long - 1) * (1 + (long - 1) * p) > share:
            low = p
        else:
            high = p
    return low


def hour_weights() -> list[float]:
    """Of the 24 hours, their mean 1: the busiest in the middle, falling off by the same factor hour by hour."""
    low, high = 0.0, 1.0
    for _ in range(60):
        factor = (low + high) / 2
        weights = [NIGHT + (1 - NIGHT) * factor ** abs(hour - 12) for hour in range(24)]
        if max(weights) * 24 / sum(weights) > PEAK_OVER_MEAN:
            low = factor
        else:
            high = factor
    return [weight * 24 / sum(weights) for weight in weights]


def agents(seconds: float, rate: float, seed: int, mix: Mix) -> list[Arrival]:
    """Each session is rounds of 4 to 8 requests at once, images mixed with videos; their number is geometric.

    An agent waits for a round (the mix's `round_s`) and thinks for 1 to 3 s before the next one.

    Args:
        rate: requests a second, on average.
    """
    lead_s = 10 * MEAN_ROUNDS * (mix.round_s + max(THINKING_S))
    session_rate = rate / (MEAN_ROUNDS * sum(FAN_OUT) / 2)
    trace = []
    for name, start_s, rng in _sessions([(lead_s + seconds, session_rate)], lead_s, seed):
        who, batch, at_s = tenant(rng), mix.is_batch(rng), start_s
        for _ in range(_geometric(rng, 1 / MEAN_ROUNDS)):
            fan_out = rng.randint(*FAN_OUT)
            if 0 <= at_s < seconds:
                trace += [mix.arrival(rng, at_s, name, who, batch) for _ in range(fan_out)]
            at_s += mix.round_s + rng.uniform(*THINKING_S)
    return sorted(trace, key=lambda arrival: arrival.at_s)


def humans(seconds: float, rate: float, seed: int, mix: Mix, day_s: float | None = None) -> list[Arrival]:
    """Sessions shaped as in Alibaba's GenTD26 trace: images only, 1 to 8 a request.

    Args:
        rate: requests a second, the mean of a day.
        day_s: how long a day is, whose middle is the busiest; the whole trace without it.
    """
    gaps = fit_gaps(*GAP_QUANTILES_S.values())
    ends = ending_chance(LONG_SESSION, LONG_SHARE)
    hour_s = (day_s or seconds) / 24
    lead_s = 24 * hour_s * math.ceil(SESSION_ENDS_S / (24 * hour_s))
    hours = math.ceil((lead_s + seconds) / hour_s)
    weights = hour_weights()
    segments = [(hour_s, rate * ends * weights[hour % 24]) for hour in range(hours)]
    trace = []
    for name, start_s, rng in _sessions(segments, lead_s, seed):
        who, batch, at_s = tenant(rng), mix.is_batch(rng), start_s
        for _ in range(_geometric(rng, ends)):
            (num,) = rng.choices(list(NUM_SHARES), list(NUM_SHARES.values()))
            if 0 <= at_s < seconds:
                trace.append(mix.arrival(rng, at_s, name, who, batch, num, images_only=True))
            at_s += gaps.draw(rng)
    return sorted(trace, key=lambda arrival: arrival.at_s)


def _sessions(segments: list[tuple[float, float]], lead_s: float, seed: int) -> Iterator[tuple[str, float, Random]]:
    """Name, start and generator of each; those of the lead start before time 0, so that some are under way at it."""
    for i, at_s in enumerate(points(segments, Random(f"{seed}/sessions"))):  # noqa: S311
        yield f"s{i}", at_s - lead_s, Random(f"{seed}/session {i}")  # noqa: S311


def _geometric(rng: Random, p: float) -> int:
    """1, 2, …; its mean is 1 / p."""
    return 1 + int(math.log(1 - rng.random()) / math.log(1 - p))
