"""Which ways there are, what they cost, and which rounds are made of them."""

from __future__ import annotations

import pytest

from raydiance.parallel.mesh import Layout
from raydiance.parallel.schedule import SCHEDULES, Schedule, name_of
from raydiance.serve.engine.ways import ALONE, Costs, Limits, Shape, Way

GUIDED, UNGUIDED = Shape(1000, 1, 2), Shape(1000)
SYNC = SCHEDULES["synchronous"]


def names(limits: Limits, size: int, shape: Shape) -> set[str]:
    return {str(way) for way in limits.ways(size, shape)}


def test_the_ways_of_two_ranks() -> None:
    ulysses = {
        f"cfg 1 x ring 1 x ulysses 2, {s}" for s in ("synchronous", "projections", "head_groups", "halves", "quarters")
    }
    ring = {"cfg 1 x ring 2 x ulysses 1, synchronous"}
    assert names(Limits(), 2, UNGUIDED) == ulysses | ring
    lanes = {"cfg 1 x ring 1 x ulysses 2, lanes", "cfg 1 x ring 2 x ulysses 1, lanes"}
    assert names(Limits(), 2, GUIDED) == ulysses | ring | lanes | {"cfg 2 x ring 1 x ulysses 1, synchronous"}
    assert names(Limits(), 2, Shape(1000, num_batches=2)) == lanes
    assert Limits().ways(1, GUIDED) == [ALONE]


def test_what_is_forced_is_taken() -> None:
    assert {w.layout for w in Limits(ring=2).ways(4, UNGUIDED)} == {Layout(ring=2, ulysses=2)}
    assert {w.layout for w in Limits(cfg=2).ways(4, GUIDED)} == {Layout(2, 1, 2), Layout(2, 2, 1)}
    assert {w.layout.cfg for w in Limits(cfg=2).ways(4, UNGUIDED)} == {1}
    assert {w.layout for w in Limits(max_ulysses=2).ways(4, UNGUIDED)} == {Layout(1, 2, 2), Layout(1, 4, 1)}
    assert {w.layout for w in Limits(ranks_per_node=1).ways(2, UNGUIDED)} == {Layout(1, 2, 1)}
    halves = Limits(schedule="halves").ways(2, UNGUIDED)
    assert [str(w) for w in halves] == ["cfg 1 x ring 1 x ulysses 2, halves", "cfg 1 x ring 2 x ulysses 1, synchronous"]
    assert Limits(max_ulysses=2, ring=1, cfg=1).ways(8, GUIDED) == []
    assert Limits().ways(8, Shape(3)) == []  # fewer tokens than ranks


def test_nothing_takes_turns_where_weights_leave_after_their_block() -> None:
    ways = [way for shape in (GUIDED, UNGUIDED) for way in Limits(turns=False).ways(2, shape)]
    assert {way.schedule for way in ways} == {SCHEDULES[n] for n in ("synchronous", "projections", "head_groups")}
    assert Limits(turns=False).ways(2, Shape(1000, num_batches=2)) == []


def test_a_ring_takes_no_schedule_of_ulysses() -> None:
    for schedule in (Schedule(early=True), Schedule(head_groups=2), Schedule(parts=2)):
        assert not schedule.fits(Layout(ring=2))
    assert not SCHEDULES["halves"].fits(Layout(ring=2, ulysses=2))
    assert not SCHEDULES["projections"].fits(Layout(cfg=2))
    assert name_of(SCHEDULES["lanes"]) == "lanes"
    with pytest.raises(ValueError, match="has no name"):
        name_of(Schedule(head_groups=7))
    with pytest.raises(ValueError, match="head_groups must be 1 or more, not 0"):
        Schedule(head_groups=0)
    with pytest.raises(ValueError, match="either two forwards or parts of one"):
        Schedule(lanes=True, parts=2)


def test_what_was_measured_is_taken_and_later_measures_are_mixed_in() -> None:
    costs = Costs()
    cheap, dear = Way(Layout(ulysses=2), SYNC), Way(Layout(ring=2), SYNC)
    assert costs.best(2, UNGUIDED) == (cheap, None)  # by rule
    assert costs.best(2, GUIDED) == (Way(Layout(cfg=2), SYNC), None)
    costs.record(UNGUIDED, dear, 1.0)
    assert costs.best(2, UNGUIDED) == (dear, 1.0)  # the only one that is known
    costs.record(UNGUIDED, cheap, 3.0)
    assert costs.best(2, UNGUIDED) == (dear, 1.0)
    for _ in range(20):
        costs.record(UNGUIDED, cheap, 0.5)
    assert costs.best(2, UNGUIDED)[0] == cheap
    assert costs.seconds(UNGUIDED, cheap) == 0.5


def test_another_size_costs_in_proportion_and_another_kind_is_unknown() -> None:
    costs = Costs()
    costs.record(UNGUIDED, ALONE, 2.0)
    costs.record(Shape(4000), ALONE, 16.0)
    assert costs.seconds(Shape(1500), ALONE) == pytest.approx(3.0)
    assert costs.seconds(Shape(3000), ALONE) == pytest.approx(12.0)
    assert costs.seconds(Shape(1000, num_batches=2), ALONE) is None
    assert costs.seconds(GUIDED, ALONE) == pytest.approx(4.0)  # twice the work
    assert costs.seconds(GUIDED, Way(Layout(cfg=2), SYNC)) is None
    costs.record(GUIDED, Way(Layout(cfg=2), SYNC), 2.0)
    assert costs.seconds(UNGUIDED, Way(Layout(cfg=2), SYNC)) is None
    assert len(costs.table()) == 3


def test_a_size_that_costs_more_than_in_proportion_does_so_in_every_way() -> None:
    costs, best, other = Costs(), Way(Layout(ulysses=2), SYNC), Way(Layout(ring=2), SYNC)
    costs.record(UNGUIDED, best, 1.0)
    costs.record(UNGUIDED, other, 2.0)
    small = Shape(100)
    costs.record(small, best, 0.5)  # and not 0.1
    assert costs.seconds(small, other) == pytest.approx(1.0)
    assert costs.best(2, small) == (best, 0.5)
