"""Prices from a table, made up by hand or at random."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from raydiance.serve.engine.ways import Shape


@dataclass
class Table:
    """`Prices`: seconds of a step alone by tokens and degree; every further row of a batch costs `row` of the first.

    Args:
        asked: how often each price was asked for.
    """

    seconds_of: Mapping[int, Mapping[int, float]]
    row: float = 0.5
    asked: dict[tuple[Shape, int], int] = field(default_factory=dict)

    def seconds(self, shape: Shape, num_ranks: int) -> float | None:
        self.asked[shape, num_ranks] = self.asked.get((shape, num_ranks), 0) + 1
        alone = self.seconds_of[shape.num_tokens].get(num_ranks)
        return None if alone is None else alone * shape.num_branches * (1 + self.row * (shape.num_rows - 1))


def scaled(seconds_of: Mapping[int, float], size: int, inflation: float = 0.17) -> Table:
    """Where every doubling of the ranks costs so much more GPU-seconds."""
    degrees = [1 << bit for bit in range(size.bit_length())]
    return Table(
        {
            tokens: {n: seconds / n * (1 + inflation) ** (n.bit_length() - 1) for n in degrees}
            for tokens, seconds in seconds_of.items()
        }
    )


def random_table(rng: random.Random, kinds: int, size: int) -> Table:
    """Whole seconds, and seldom less than the fewest ranks would have to take."""
    table = {}
    for tokens in range(1, kinds + 1):
        alone = rng.randint(1, 6)
        table[tokens] = {1: alone} | {n: max(1, round(alone / n * rng.uniform(1.0, 1.5))) for n in (2, 4) if n <= size}
    return Table(table)
