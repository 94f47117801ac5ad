"""When requests come that know nothing of each other: Poisson, and in two states that take turns (MMPP)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random

from trace_arrival import Arrival
from trace_mix import Mix, tenant

BURST_SHARE = 0.1
"""Of the time."""
BURST_S = 20.0
"""Mean length of a burst."""


def points(segments: Iterable[tuple[float, float]], rng: Random) -> Iterator[float]:
    """Times of a Poisson process whose rate is constant in pieces.

    The draws do not depend on the rates: with all rates doubled, the same points come at half the distances.

    Args:
        segments: seconds and rate of each, one after the other from time 0 on.
    """
    left = rng.expovariate(1)
    start_s = 0.0
    for seconds, rate in segments:
        at_s, end_s = start_s, start_s + seconds
        while left < rate * (end_s - at_s):
            at_s += left / rate
            yield at_s
            left = rng.expovariate(1)
        left -= rate * (end_s - at_s)
        start_s = end_s


def poisson(seconds: float, rate: float, seed: int, mix: Mix) -> list[Arrival]:
    """`rate` requests a second on average."""
    return _of_points([(seconds, rate)], seed, mix)


def mmpp(seconds: float, rate: float, seed: int, mix: Mix, burst_factor: float = 6.0) -> list[Arrival]:
    """A Markov-modulated Poisson process: in a burst, requests come `burst_factor` times as fast as in calm.

    Calm and bursts last exponentially long; bursts are BURST_SHARE of the time. `rate` is the mean over both.
    """
    calm_rate = rate / (1 - BURST_SHARE + BURST_SHARE * burst_factor)
    states = _states(seconds, Random(f"{seed}/states"), calm_rate, calm_rate * burst_factor)  # noqa: S311
    return _of_points(states, seed, mix)


def _states(seconds: float, rng: Random, calm_rate: float, burst_rate: float) -> Iterator[tuple[float, float]]:
    calm_s = BURST_S * (1 - BURST_SHARE) / BURST_SHARE
    left_s, in_burst = seconds, rng.random() < BURST_SHARE
    while left_s > 0:
        lasts_s = min(left_s, rng.expovariate(1 / (BURST_S if in_burst else calm_s)))
        yield lasts_s, burst_rate if in_burst else calm_rate
        left_s, in_burst = left_s - lasts_s, not in_burst


def _of_points(segments: Iterable[tuple[float, float]], seed: int, mix: Mix) -> list[Arrival]:
    when, what = Random(f"{seed}/when"), Random(f"{seed}/what")  # noqa: S311
    return [
        mix.arrival(what, at_s, f"r{i}", tenant(what), mix.is_batch(what))
        for i, at_s in enumerate(points(segments, when))
    ]
