"""Parts of a wave: what is stepped on some of the ranks, at once with the other parts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raydiance.parallel.mesh import Mesh
from raydiance.parallel.schedule import Schedule
from raydiance.serve.engine.orders import Standing
from raydiance.serve.engine.ways import Costs, Shape, Way


@dataclass(frozen=True, slots=True)
class Part:
    """One batch, or two in lanes: indices into the candidates, on the ranks of a mesh."""

    batches: tuple[tuple[int, ...], ...]
    shape: Shape
    mesh: Mesh
    schedule: Schedule

    @property
    def way(self) -> Way:
        return Way(self.mesh.layout, self.schedule)


Wave = list[Part]
"""Parts on ranks that are apart, at once."""


def batch_shape(shapes: Sequence[Shape]) -> Shape:
    """Of one batch, of the shapes of its rows."""
    return Shape(max(s.num_tokens for s in shapes), len(shapes), max(s.num_branches for s in shapes))


def shape_of(standings: Sequence[Standing]) -> Shape:
    """Of one batch of trajectories."""
    return batch_shape([Shape(s.num_tokens, 1, s.num_branches) for s in standings])


def lanes(shape: Shape, other: Shape, in_turn_s: float, size: int, costs: Costs) -> tuple[Shape, Way, float] | None:
    """Two batches in lanes, as two of one size with the work of both; the way and its seconds.

    None where that takes no less than `in_turn_s`, was not measured, or cannot be.
    """
    if shape.num_branches != other.num_branches:
        return None
    tokens = (shape.work + other.work) // (2 * shape.num_rows * shape.num_branches)
    both = Shape(tokens, shape.num_rows, shape.num_branches, 2)
    found = costs.best(size, both)
    if found is None or found[1] is None or found[1] >= in_turn_s:
        return None
    if min(shape.num_tokens, other.num_tokens) < found[0].layout.sequence:
        return None
    return both, found[0], found[1]
