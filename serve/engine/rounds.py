"""A round: every trajectory one step further, in batches that are dealt out over the ranks. Pure.

Tried are all sizes of subgroup: one batch after the other on all ranks, two at once on half of them each, and so on;
and two batches at once in lanes. The round that is shortest by what steps cost is taken.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from raydiance.parallel.mesh import Mesh, Subgroup, powers_of_two
from raydiance.parallel.schedule import Schedule
from raydiance.serve.engine.orders import Standing
from raydiance.serve.engine.plan import PlanItem, plan
from raydiance.serve.engine.ways import Costs, Shape, Way


@dataclass(frozen=True, slots=True)
class Part:
    """One batch of a round, or two in lanes: indices into the trajectories, on the ranks of a mesh."""

    batches: tuple[tuple[int, ...], ...]
    shape: Shape
    mesh: Mesh
    schedule: Schedule

    @property
    def way(self) -> Way:
        return Way(self.mesh.layout, self.schedule)


Wave = list[Part]
"""Parts on ranks that are apart, at once."""


def round_of(
    standings: Sequence[Standing], size: int, costs: Costs, *, max_batch_size: int, max_batch_tokens: int
) -> list[Wave]:
    """Every trajectory in one part. Raises ValueError where the limits leave no way for one.

    Where no size of subgroup is right for all, those of one kind are stepped after those of another.
    """
    rounds = [
        found
        for per_part in reversed(powers_of_two(size))
        if (found := _on_subgroups(standings, size, per_part, costs, max_batch_size, max_batch_tokens)) is not None
    ]
    if rounds:
        return min(rounds, key=lambda found: found[0])[1]
    kinds: dict[tuple[int, ...], list[int]] = {}
    for i, standing in enumerate(standings):
        kinds.setdefault(_sizes(standing, size, costs), []).append(i)
    if () in kinds or len(kinds) == 1:
        fewest = min(standing.num_tokens for standing in standings)
        raise ValueError(f"no layout of {size} ranks for {fewest} tokens within {costs.limits}")
    waves: list[Wave] = []
    for kind in kinds.values():
        some = [standings[i] for i in kind]
        of_kind = round_of(some, size, costs, max_batch_size=max_batch_size, max_batch_tokens=max_batch_tokens)
        waves += [[_of(part, kind) for part in wave] for wave in of_kind]
    return waves


def _sizes(standing: Standing, size: int, costs: Costs) -> tuple[int, ...]:
    """Of the subgroups that a trajectory can be stepped on."""
    return tuple(s for s in powers_of_two(size) if costs.best(s, shape_of([standing])) is not None)


def _of(part: Part, kind: Sequence[int]) -> Part:
    """A part of some of the trajectories, as one of all of them."""
    return replace(part, batches=tuple(tuple(kind[i] for i in batch) for batch in part.batches))


def shape_of(standings: Sequence[Standing]) -> Shape:
    """Of one batch."""
    return Shape(
        max(standing.num_tokens for standing in standings),
        len(standings),
        max(standing.num_branches for standing in standings),
    )


def _on_subgroups(
    standings: Sequence[Standing],
    size: int,
    per_part: int,
    costs: Costs,
    max_batch_size: int,
    max_batch_tokens: int,
) -> tuple[float, list[Wave]] | None:
    """Seconds of a round on subgroups of `per_part` ranks, and the round; None where there is no way."""
    at_once = size // per_part
    fullest = max(Counter(standing.key for standing in standings).values())
    batches = plan(
        [PlanItem(s.key, s.num_tokens) for s in standings],
        max_batch_size=min(max_batch_size, math.ceil(fullest / at_once)),
        max_batch_tokens=max_batch_tokens,
    )
    shapes = [shape_of([standings[i] for i in batch]) for batch in batches]
    best = [costs.best(per_part, shape) for shape in shapes]
    priced = [
        (math.inf if found[1] is None else found[1], tuple(batch), shape, found[0])
        for batch, shape, found in zip(batches, shapes, best, strict=True)
        if found is not None
    ]
    if len(priced) < len(batches):
        return None
    priced.sort(key=lambda each: -each[0])
    if at_once == 1:
        return _in_turn(priced, size, costs)
    waves = [priced[i : i + at_once] for i in range(0, len(priced), at_once)]
    return sum(wave[0][0] for wave in waves), [
        [
            Part((batch,), shape, Mesh(Subgroup(at * per_part, per_part), way.layout), way.schedule)
            for at, (_, batch, shape, way) in enumerate(wave)
        ]
        for wave in waves
    ]


Priced = tuple[float, tuple[int, ...], Shape, Way]


def _in_turn(priced: Sequence[Priced], size: int, costs: Costs) -> tuple[float, list[Wave]]:
    """On all ranks: neighbours in lanes where that costs less than one after the other."""
    seconds, waves, rest = 0.0, [], list(priced)
    everybody = Subgroup(0, size)
    while rest:
        cost, batch, shape, way = rest.pop(0)
        if rest and (lanes := _lanes(shape, rest[0], cost, size, costs)) is not None:
            (both, together, seconds_together), other = lanes, rest.pop(0)
            waves.append([Part((batch, other[1]), both, Mesh(everybody, together.layout), together.schedule)])
            seconds += seconds_together
        else:
            waves.append([Part((batch,), shape, Mesh(everybody, way.layout), way.schedule)])
            seconds += cost
    return seconds, waves


def _lanes(shape: Shape, other: Priced, cost: float, size: int, costs: Costs) -> tuple[Shape, Way, float] | None:
    """Two batches in lanes, as two of one size with the work of both; the way and the seconds, where that is less than
    in turn and was measured."""
    if shape.num_branches != other[2].num_branches:
        return None
    tokens = (shape.work + other[2].work) // (2 * shape.num_rows * shape.num_branches)
    both = Shape(tokens, shape.num_rows, shape.num_branches, 2)
    found = costs.best(size, both)
    if found is None or found[1] is None or found[1] >= cost + other[0]:
        return None
    if min(shape.num_tokens, other[2].num_tokens) < found[0].layout.sequence:
        return None
    return both, found[0], found[1]
