"""What the goodput benchmark asks for: what takes the peer about 0.7 to 5 s alone, in bursts of agents. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

from traces import Arrival, Ask, Mix, agents

MIX = Mix(
    images=(Ask("96x96", 24, 2), Ask("128x128", 40, 1)),
    videos=(Ask("96x96x9", 24, 1), Ask("96x96x25", 14, 2)),
    video_share=0.35,
    batch_share=0.1,
    round_s=2.0,
)
"""An agent looks at pictures of two sizes and, of one request in three, at a short or a longer clip."""
TIGHT, LOOSE = 1.5, 3.0
SEED = 4
OFF = 0.1
"""By which the work of a trace may differ from its load."""
SEEDS_A_ROUND = 1000


def quick_mix() -> Mix:
    """The same sizes in an eighth of the steps."""
    images, videos = ([replace(ask, steps=max(ask.steps // 8, 2)) for ask in asks] for asks in (MIX.images, MIX.videos))
    return replace(MIX, images=tuple(images), videos=tuple(videos))


def shares(mix: Mix) -> list[tuple[Arrival, float]]:
    """One request of each size, and its share of all."""
    found = []
    for kind, asks, share in (("image", mix.images, 1 - mix.video_share), ("video", mix.videos, mix.video_share)):
        weights = sum(ask.weight for ask in asks)
        for ask in asks:
            one = Arrival(0.0, "s", "t", "standard", kind, ask.size, ask.steps, 1, 1.0)  # type: ignore[arg-type]
            found.append((one, share * ask.weight / weights))
    return found


def kinds(mix: Mix) -> list[Arrival]:
    """One request of each size."""
    return [one for one, _ in shares(mix)]


def mean_s(mix: Mix, alone: Mapping[str, float]) -> float:
    """Of a request, alone."""
    return sum(alone[one.size] * share for one, share in shares(mix))


def balanced(mix: Mix, count: int) -> list[Arrival]:
    """About so many requests, of each size its share, in an order that looks random and is always the same."""
    found = [one for one, share in shares(mix) for _ in range(round(count * share))]
    Random(SEED).shuffle(found)  # noqa: S311
    return found


def trace_of(
    mix: Mix, seconds: float, load: float, rate: float, alone: Mapping[str, float], round_: int, off: float = OFF
) -> list[Arrival]:
    """Agents whose requests and work are `load` times saturation, within `off`: of the seeds the first such trace.

    Args:
        rate: requests a second at saturation.
        round_: each has seeds of its own.

    Raises:
        ValueError: none of the seeds has such a trace; it is too short.
    """
    count, mean = load * rate * seconds, mean_s(mix, alone)
    for seed in range(SEED + round_ * SEEDS_A_ROUND, SEED + (round_ + 1) * SEEDS_A_ROUND):
        trace = agents(seconds, load * rate, seed, mix)
        work = sum(alone[arrival.size] for arrival in trace)
        if _near(len(trace), count, off) and _near(work, count * mean, off) and _has_all(trace):
            return trace
    raise ValueError(f"no trace of {seconds:g} s has a load of {load:g}: take a longer one")


def _near(value: float, wanted: float, off: float) -> bool:
    return abs(value - wanted) <= off * wanted


def _has_all(trace: Sequence[Arrival]) -> bool:
    """Some request with a target, and some of the tier batch."""
    return len({arrival.tier == "batch" for arrival in trace}) == 2
