"""Costs are measured in every way there is, nothing stepped for it counts, and what does not fit is ruled out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from raydiance.models.spec import Spec
from raydiance.parallel.mesh import Layout
from raydiance.serve.engine.calibrate import REPEATS, calibrate
from raydiance.serve.engine.fleet import RanksLost
from raydiance.serve.engine.orders import Outcome, Report, Standing, Start, Turn
from raydiance.serve.engine.ways import Costs, Limits, Shape

START = Start("a", Spec("m", "text-to-video", "a red ball", 32, 48, 5, 10, 3.0, 0), [])


class Fleet:
    """Two ranks that take as long as the layout says."""

    size = 2
    card: Any = None

    def __init__(self, seconds: dict[Layout, float], broken: Layout | None = None, is_done: bool = False) -> None:
        self.seconds, self.broken, self.is_done = seconds, broken, is_done
        self.turns: list[Turn] = []
        self.held: set[str] = set()

    def begin(self, start: Start) -> tuple[Standing, Outcome]:
        self.held.add(start.id)
        return Standing(10 if self.is_done else 0, 10, "key", 1000, 2), Outcome(0)

    def drop(self, ids: Sequence[str]) -> None:
        self.held -= set(ids)

    def step(self, turns: Sequence[Turn]) -> list[Report | Exception]:
        [turn] = turns
        assert {i for batch in turn.batches for i in batch} <= self.held
        assert not turn.keeps
        self.turns.append(turn)
        if turn.mesh.layout == self.broken:
            return [torch.OutOfMemoryError("too big")]
        return [Report({}, self.seconds.get(turn.mesh.layout, 5.0))]


def test_every_way_is_measured_and_nothing_is_kept() -> None:
    fleet, costs = Fleet({Layout(cfg=2): 1.0, Layout(): 3.0}), Costs()
    calibrate(fleet, START, costs, 60)
    shape, pair = Shape(1000, 1, 2), Shape(1000, 1, 2, 2)
    ways = [way for size, s in ((2, shape), (1, shape), (2, pair)) for way in Limits().ways(size, s)]
    assert [way for _, way, _ in costs.table()] == ways
    assert len(fleet.turns) == len(ways) * (1 + REPEATS)
    assert costs.best(2, shape)[0].layout == Layout(cfg=2)
    assert not fleet.held
    assert any(len(turn.batches) == 2 for turn in fleet.turns)


def test_what_does_not_fit_is_never_taken() -> None:
    fleet, costs = Fleet({}, broken=Layout(cfg=2)), Costs()
    calibrate(fleet, START, costs, 60)
    assert Layout(cfg=2) not in {way.layout for _, way, _ in costs.table()}
    assert costs.best(2, Shape(1000, 1, 2))[0].layout != Layout(cfg=2)


def test_it_ends_in_time_and_needs_a_step() -> None:
    fleet, costs = Fleet({}), Costs()
    calibrate(fleet, START, costs, -1)
    assert costs.table() == []
    calibrate(Fleet({}, is_done=True), START, costs, 60)
    assert costs.table() == []


def test_ways_that_fail_are_told_and_not_taken_and_nothing_is_left(caplog: pytest.LogCaptureFixture) -> None:
    fleet, costs = Fleet({}), Costs()
    fleet.step = lambda turns: [ValueError("bad")]  # type: ignore[method-assign]
    calibrate(fleet, START, costs, 60)
    assert costs.table() == []
    assert not fleet.held
    assert "ValueError: bad" in caplog.text


def test_lost_ranks_end_it() -> None:
    fleet = Fleet({})

    def lost(turns: Sequence[Turn]) -> list[Report | Exception]:
        raise RanksLost("rank 1 has died")

    fleet.step = lost  # type: ignore[method-assign]
    with pytest.raises(RanksLost):
        calibrate(fleet, START, Costs(), 60)
    assert not fleet.held
