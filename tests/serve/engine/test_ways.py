"""Which ways there are, what they cost, and which rounds are made of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiance.parallel.mesh import Layout
from raydiance.parallel.schedule import SCHEDULES, Schedule, name_of
from raydiance.serve.engine.orders import Standing
from raydiance.serve.engine.rounds import round_of
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


def standing(key: str, tokens: int = 1000, branches: int = 1) -> Standing:
    return Standing(0, 10, key, tokens, branches)


def costs_of(seconds: dict[Layout, float]) -> Costs:
    """Of a step of UNGUIDED."""
    costs = Costs()
    for layout, s in seconds.items():
        costs.record(UNGUIDED, Way(layout, SYNC), s)
    return costs


def rounds(standings: list[Standing], size: int, costs: Costs, **limits: int) -> list[list[tuple[int, int]]]:
    """By wave, the ranks and the trajectories of each part."""
    waves = round_of(standings, size, costs, **{"max_batch_size": 8, "max_batch_tokens": 10**9, **limits})
    for wave in waves:
        ranks = [rank for part in wave for rank in part.mesh.subgroup.ranks]
        assert len(ranks) == len(set(ranks))
    return [[(part.mesh.subgroup.size, sum(map(len, part.batches))) for part in wave] for wave in waves]


def test_one_takes_all_ranks_where_that_is_faster_and_one_where_it_is_not() -> None:
    assert rounds([standing("a")], 2, costs_of({Layout(): 1.0, Layout(ulysses=2): 0.6})) == [[(2, 1)]]
    assert rounds([standing("a")], 2, costs_of({Layout(): 1.0, Layout(ulysses=2): 1.6})) == [[(1, 1)]]


def test_two_take_half_of_the_ranks_each() -> None:
    costs = costs_of({Layout(): 1.0, Layout(ulysses=2): 0.6})
    assert rounds([standing("a"), standing("a")], 2, costs) == [[(1, 1), (1, 1)]]
    assert rounds([standing("a"), standing("b")], 2, costs) == [[(1, 1), (1, 1)]]
    assert rounds([standing("a")] * 4, 2, costs) == [[(1, 2), (1, 2)]]
    much_faster = costs_of({Layout(): 1.0, Layout(ulysses=2): 0.4})
    assert rounds([standing("a"), standing("b")], 2, much_faster) == [[(2, 1)], [(2, 1)]]


def test_two_that_need_all_ranks_share_them_in_lanes_where_that_was_measured_to_be_faster() -> None:
    costs = costs_of({Layout(): 9.0, Layout(ulysses=2): 1.0})
    pair = [standing("a"), standing("b")]
    assert rounds(pair, 2, costs) == [[(2, 1)], [(2, 1)]]
    lanes = Way(Layout(ulysses=2), SCHEDULES["lanes"])
    costs.record(Shape(1000, num_batches=2), lanes, 1.5)
    assert rounds(pair, 2, costs) == [[(2, 2)]]
    [[part]] = round_of(pair, 2, costs, max_batch_size=8, max_batch_tokens=10**9)
    assert (part.batches, part.way) == (((0,), (1,)), lanes)
    for _ in range(2):
        costs.record(Shape(1000, num_batches=2), lanes, 9.0)
    assert rounds(pair, 2, costs) == [[(2, 1)], [(2, 1)]]


def test_no_layout_is_an_error_with_the_numbers() -> None:
    with pytest.raises(ValueError, match=r"no layout of 4 ranks for 1000 tokens within .*ring=8"):
        round_of([standing("a")], 4, Costs(Limits(ring=8)), max_batch_size=8, max_batch_tokens=10**9)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(8, 5000), st.sampled_from([1, 2])), min_size=1, max_size=12),
    st.sampled_from([1, 2, 4, 8]),
    st.dictionaries(st.sampled_from([Layout(), Layout(ulysses=2), Layout(ring=2), Layout(cfg=2)]), st.floats(0.1, 9)),
    st.integers(1, 4),
)
def test_everyone_is_stepped_once_on_ranks_that_are_apart(
    items: list[tuple[str, int, int]], size: int, seconds: dict[Layout, float], max_batch_size: int
) -> None:
    costs = Costs()
    for branches in (1, 2):
        for layout, s in seconds.items():
            costs.record(Shape(1000, 1, branches), Way(layout, SYNC), s)
    standings = [standing(f"{key}{tokens}{branches}", tokens, branches) for key, tokens, branches in items]
    waves = round_of(standings, size, costs, max_batch_size=max_batch_size, max_batch_tokens=10**9)
    assert sorted(i for wave in waves for part in wave for b in part.batches for i in b) == list(range(len(items)))
    for wave in waves:
        ranks = [rank for part in wave for rank in part.mesh.subgroup.ranks]
        assert len(ranks) == len(set(ranks))
        assert max(ranks) < size
        for part in wave:
            assert all(len({standings[i].key for i in batch}) == 1 for batch in part.batches)
            assert all(len(batch) <= max_batch_size for batch in part.batches)
            assert part.schedule.fits(part.mesh.layout)
    assert math.isfinite(len(waves))
