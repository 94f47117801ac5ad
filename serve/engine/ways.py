"""Ways to run a step on some ranks: which there are, what they cost here, and which is taken. Pure.

First the layout is chosen, then the schedule, and both by what they cost where they were measured: at warm-up for the
default size, and since then for every size at every step. A size that was not measured yet costs what the nearest one
costs, in proportion to its tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median_low

from raydiance.parallel.mesh import Layout, powers_of_two
from raydiance.parallel.schedule import SCHEDULES, Schedule, name_of

FEWEST_IN_PART = 8
"""Tokens of a rank: with fewer, one could be left without any of a stream, and there is nothing to hide."""
SHORTEST_S = 1e-6
LAST = 5
"""Measures of a step that are kept. Their median counts: what one hiccup had made dear would never be tried again."""


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """What a step computes.

    Args:
        num_tokens: of one row's sequence.
        num_rows: trajectories of a batch.
        num_branches: 2 with classifier-free guidance.
        num_batches: 2 where two batches of this shape are stepped together.
    """

    num_tokens: int
    num_rows: int = 1
    num_branches: int = 1
    num_batches: int = 1

    @property
    def work(self) -> int:
        """Tokens in all forwards."""
        return self.num_tokens * self.num_rows * self.num_branches * self.num_batches


@dataclass(frozen=True, slots=True)
class Way:
    layout: Layout
    schedule: Schedule

    def __str__(self) -> str:
        return f"{self.layout}, {name_of(self.schedule)}"


ALONE = Way(Layout(), SCHEDULES["synchronous"])


@dataclass(frozen=True, slots=True)
class Limits:
    """What layouts there may be; None leaves a degree to what is measured.

    Args:
        max_ulysses: at most one a head.
        ring: its only degree.
        cfg: its only degree, for guided steps; the others have one branch.
        schedule: the only one, where it means something to a layout.
        ranks_per_node: Ulysses stays inside a node.
        pairs: whether two batches may be in lanes: not where the weights that one needs displace those of the other.
        turns: whether forwards, or parts of one, may take turns at all: not where a block's weights leave after it.
    """

    max_ulysses: int = 1 << 30
    ring: int | None = None
    cfg: int | None = None
    schedule: str | None = None
    ranks_per_node: int = 1 << 30
    pairs: bool = True
    turns: bool = True

    def layouts(self, size: int, num_branches: int) -> list[Layout]:
        """On `size` ranks; none where the limits leave none."""
        most = min(self.max_ulysses, self.ranks_per_node)
        cfgs = [1] if num_branches == 1 else [1, 2] if self.cfg is None else [self.cfg]
        rings = powers_of_two(size) if self.ring is None else [self.ring]
        return [
            Layout(cfg, ring, size // (cfg * ring))
            for cfg in cfgs
            for ring in rings
            if size % (cfg * ring) == 0 and 1 <= size // (cfg * ring) <= most
        ]

    def ways(self, size: int, shape: Shape) -> list[Way]:
        """Those in which every rank has tokens enough."""
        return [
            Way(layout, schedule)
            for layout in self.layouts(size, shape.num_branches)
            for schedule in self._schedules(layout, shape)
            if shape.num_tokens >= layout.sequence * (FEWEST_IN_PART * schedule.parts if schedule.parts > 1 else 1)
        ]

    def _schedules(self, layout: Layout, shape: Shape) -> Iterable[Schedule]:
        forwards = 2 if shape.num_batches == 2 else shape.num_branches // layout.cfg
        fitting = {
            name: schedule
            for name, schedule in SCHEDULES.items()
            if schedule.fits(layout)
            and (not schedule.lanes or forwards > 1)
            and (self.turns or not (schedule.lanes or schedule.parts > 1))
        }
        if shape.num_batches == 2:
            may = self.pairs and self.schedule in (None, "lanes")
            return [s for s in fitting.values() if s.lanes and may]
        if self.schedule in fitting:
            return [fitting[self.schedule]]
        return fitting.values()


@dataclass
class Costs:
    """Seconds of a step, by shape and way, as measured."""

    limits: Limits = field(default_factory=Limits)
    _seconds: dict[Shape, dict[Way, tuple[float, ...]]] = field(default_factory=dict)

    def record(self, shape: Shape, way: Way, seconds: float) -> None:
        known = self._seconds.setdefault(shape, {})
        seconds = max(seconds, SHORTEST_S)
        known[way] = (*known.get(way, ()), seconds)[-LAST:]

    def times_measured(self, shape: Shape, way: Way) -> int:
        """Of exactly this shape; at most `LAST`."""
        return len(self._seconds.get(shape, {}).get(way, ()))

    def seconds(self, shape: Shape, way: Way) -> float | None:
        """None where nothing of its kind was measured in this way."""
        if (found := self._seconds.get(shape, {}).get(way)) is not None:
            return median_low(found)
        near = [known for known, by_way in self._seconds.items() if way in by_way and _alike(known, shape, way)]
        if not near:
            return None
        nearest = min(near, key=lambda known: abs(math.log(known.work / shape.work)))
        return median_low(self._seconds[nearest][way]) * shape.work / nearest.work * self._correction(shape, nearest)

    def _correction(self, shape: Shape, nearest: Shape) -> float:
        """How much more than in proportion the shape has cost in the ways that were measured for both.

        Without it what was measured would be compared with what is hoped for, and every way be tried once.
        """
        here, there = self._seconds.get(shape, {}), self._seconds[nearest]
        both, proportion = [way for way in here if way in there], shape.work / nearest.work
        factors = [median_low(here[way]) / (median_low(there[way]) * proportion) for way in both]
        return math.exp(sum(map(math.log, factors)) / len(factors)) if factors else 1.0

    def best(self, size: int, shape: Shape) -> tuple[Way, float | None] | None:
        """The cheapest way on `size` ranks and its seconds; None where there is no way.

        Where nothing was measured it is the one that exchanges least by rule, and its seconds are None.
        """
        ways = self.limits.ways(size, shape)
        costs = [(seconds, i) for i, way in enumerate(ways) if (seconds := self.seconds(shape, way)) is not None]
        if not costs:
            return (min(ways, key=_by_rule), None) if ways else None
        seconds, i = min(costs)
        return ways[i], seconds

    def table(self) -> list[tuple[Shape, Way, float]]:
        """All that was measured, for logs and metrics; may be called from any thread: a copy is made in one go, where
        going through items can be interrupted."""
        measured = [(shape, list(by_way.copy().items())) for shape, by_way in sorted(self._seconds.copy().items())]
        return [(shape, way, median_low(seconds)) for shape, by_way in measured for way, seconds in by_way]


def _alike(a: Shape, b: Shape, way: Way) -> bool:
    """Whether what one costs in this way says what the other does: a second branch is twice the work, unless it is on
    ranks of its own or in a lane."""
    by_branch = way.layout.cfg > 1 or way.schedule.lanes
    return a.num_batches == b.num_batches and (a.num_branches == b.num_branches or not by_branch)


def _by_rule(way: Way) -> tuple[int, int, int]:
    """Guidance branches apart first, then Ulysses, and nothing hidden."""
    return -way.layout.cfg, way.layout.ring, list(SCHEDULES).index(name_of(way.schedule))
