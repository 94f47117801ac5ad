"""Measuring what steps cost here, in every way that the limits allow, before the first of them counts."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace

from raydiance.parallel.mesh import Mesh, Subgroup, powers_of_two
from raydiance.serve.engine import memory
from raydiance.serve.engine.fleet import Fleet, RanksLost
from raydiance.serve.engine.orders import Report, Start, Turn
from raydiance.serve.engine.parts import shape_of
from raydiance.serve.engine.ways import Costs, Shape, Way

log = logging.getLogger("ray.serve")
REPEATS = 2
"""Of each way after a first time, which is not counted: buffers are made then, and connections opened."""


def calibrate(fleet: Fleet, start: Start, costs: Costs, longest_s: float) -> None:
    """Steps two copies of a trajectory, which is then forgotten. The ways on all ranks come first.

    Args:
        longest_s: no further way is tried after so long; those that were not tried are not taken.

    A step that fails rules its way out, and is logged. Raises RanksLost, and what the family raises at the beginning.
    """
    began = time.monotonic()
    pair = [replace(start, id=f"{start.id}/calibrate-{i}") for i in range(2)]
    try:
        standings = [fleet.begin(each)[0] for each in pair]
        if standings[0].is_done:
            return
        for size, way, shape in _ways(costs, fleet.size, shape_of(standings[:1])):
            if time.monotonic() - began > longest_s:
                log.info("calibration ends after %g s; what was not measured is not taken", longest_s)
                break
            batches = tuple((each.id,) for each in pair[: shape.num_batches])
            turn = Turn(batches, Mesh(Subgroup(0, size), way.layout), way.schedule, keeps=False)
            try:
                seconds = min([_seconds(fleet, turn) for _ in range(1 + REPEATS)][1:])
            except RanksLost:
                raise
            except Exception as e:
                if memory.ran_out(e):
                    log.info("a step of %d tokens, %s, does not fit: %s", shape.work, way, e)
                else:
                    log.exception("a step of %d tokens, %s, failed and will not be taken", shape.work, way)
                continue
            costs.record(shape, way, seconds)
            log.info("a step of %d tokens, %s: %.4f s", shape.work, way, seconds)
    finally:
        fleet.drop([each.id for each in pair])


def _ways(costs: Costs, size: int, shape: Shape) -> Iterator[tuple[int, Way, Shape]]:
    for some in reversed(powers_of_two(size)):
        for way in costs.limits.ways(some, shape):
            yield some, way, shape
    both = replace(shape, num_batches=2)
    for way in costs.limits.ways(size, both):
        yield size, way, both


def _seconds(fleet: Fleet, turn: Turn) -> float:
    [report] = fleet.step([turn])
    if not isinstance(report, Report):
        raise report
    return report.seconds
