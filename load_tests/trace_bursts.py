"""Agents in bursts: a trace whose sessions come eight times as often for some minutes of the hour."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from trace_arrival import Arrival
from trace_mix import Mix
from trace_sessions import agents

FACTOR = 8
BURSTS = ((480, 660), (1080, 1200), (1620, 1860), (2460, 2580), (3000, 3240))
"""Seconds of an hour, from and to: fixed, and known to nobody beforehand."""


def bursts(
    seconds: float, rate: float, seed: int, mix: Mix, windows: Sequence[tuple[float, float]] = BURSTS
) -> list[Arrival]:
    """`agents`, whose sessions begin FACTOR times as often inside of the windows.

    Args:
        rate: requests a second, outside of them.
    """
    rng, kept = Random(f"{seed}/calm"), {}  # noqa: S311
    trace = []
    for arrival in agents(seconds, FACTOR * rate, seed, mix):
        if arrival.session not in kept:
            in_burst = any(start <= arrival.at_s < end for start, end in windows)
            kept[arrival.session] = rng.random() < 1 / FACTOR or in_burst
        if kept[arrival.session]:
            trace.append(arrival)
    return trace
