"""Kinds of steps and what one costs, for one plan: equal steps are priced together, and each price is asked for once.

A step can be had fast or cheap: on more ranks it ends sooner and takes more GPU-seconds; in a batch it ends later and
takes fewer. Of all such options those are kept that no other beats in both. With a deadline and so many steps left, the
cheapest option that is fast enough is taken: where speed-up falls with every doubling, that is the smallest degree.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from raydiance.parallel.mesh import powers_of_two
from raydiance.serve.engine.policies.base import Candidate, Prices, Rules
from raydiance.serve.engine.ways import Shape

WORTHWHILE = 0.9
"""Of the GPU-seconds that a step takes alone, what it may add to a batch at most: a batch ends later for all its
members, and keeps its ranks for longer from those that come; the last percents of throughput are not worth that."""


class Steps:
    """Seconds of steps.

    Args:
        size: of the replica, in ranks.
    """

    def __init__(self, prices: Prices, size: int) -> None:
        self.degrees = powers_of_two(size)
        self._prices = prices
        self._known: dict[tuple[int, int, int, int], float | None] = {}

    def seconds(self, num_tokens: int, num_rows: int, num_branches: int, degree: int) -> float | None:
        """None where no layout takes it."""
        key = num_tokens, num_rows, num_branches, degree
        if key not in self._known:
            self._known[key] = self._prices.seconds(Shape(num_tokens, num_rows, num_branches), degree)
        return self._known[key]


class Option(NamedTuple):
    """How a step may be done.

    Args:
        seconds: of the step, in the batch it is in.
        cost: GPU-seconds of one row.
        alone_s: of the step without the batch.
    """

    degree: int
    seconds: float
    cost: float
    alone_s: float


@dataclass(slots=True, eq=False)
class Kind:
    """Steps that cost the same and can share a forward.

    Args:
        count: how many there are.
        smallest: the fewest ranks that take it; 0 where no layout does.
        alone: seconds of one, by degree, the small ones first; empty where no layout takes it.
        options: the fast ones first; each is slower and cheaper than the one before.
        rates: seconds of each.
        slopes: by how many GPU-seconds a step becomes cheaper for each second that it is slower, up to the next option.
    """

    key: Hashable
    num_tokens: int
    num_branches: int
    count: int = 0
    smallest: int = 0
    alone: dict[int, float] = field(default_factory=dict)
    options: list[Option] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    slopes: list[float] = field(default_factory=list)

    def within(self, step_s: float) -> tuple[Option, float] | None:
        """The cheapest option whose step takes no longer, and GPU-seconds a step where steps take just so long on
        average: some as that option has them, the others as the next one. None where no option is fast enough."""
        i = bisect_right(self.rates, step_s) - 1
        if i < 0:
            return None
        option = self.options[i]
        return option, option.cost + (step_s - option.seconds) * self.slopes[i]


def kinds_of(candidates: Iterable[Candidate], steps: Steps, rules: Rules, *, batched: bool) -> list[Kind]:
    """Of each candidate, its kind, with prices.

    Args:
        batched: whether the options have batches.
    """
    found: dict[tuple[Hashable, int, int], Kind] = {}
    of_each = []
    for candidate in candidates:
        what = (candidate.key, candidate.num_tokens, candidate.num_branches)
        kind = found.get(what)
        if kind is None:
            kind = found[what] = Kind(*what)
        kind.count += 1
        of_each.append(kind)
    for kind in found.values():
        most = min(kind.count, rules.max_batch_size, rules.max_batch_tokens // max(kind.num_tokens, 1))
        _price(kind, steps, powers_of_two(most)[1:] if batched else [])
    return of_each


def _price(kind: Kind, steps: Steps, rows: Sequence[int]) -> None:
    """Batches are looked at on the fewest ranks only: there they are cheapest."""
    for degree in steps.degrees:
        seconds = steps.seconds(kind.num_tokens, 1, kind.num_branches, degree)
        if seconds is not None:
            kind.alone[degree] = seconds
            kind.smallest = kind.smallest or degree
    options = [Option(degree, seconds, degree * seconds, seconds) for degree, seconds in kind.alone.items()]
    if options:
        degree, alone_s = kind.smallest, options[0].seconds
        for num_rows in rows:
            seconds = steps.seconds(kind.num_tokens, num_rows, kind.num_branches, degree)
            if seconds is not None and seconds - alone_s <= (num_rows - 1) * WORTHWHILE * alone_s:
                options.append(Option(degree, seconds, degree * seconds / num_rows, alone_s))
    options.sort(key=lambda option: (option.seconds, option.cost))
    cheapest = float("inf")
    for option in options:
        if option.cost < cheapest:
            cheapest = option.cost
            kind.options.append(option)
            kind.rates.append(option.seconds)
    kind.slopes = [(b.cost - a.cost) / (b.seconds - a.seconds) for a, b in pairwise(kind.options)] + [0.0]
