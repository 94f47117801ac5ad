"""From candidates to parts: who steps, on which ranks, in which way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiance.parallel.mesh import Layout
from raydiance.parallel.schedule import SCHEDULES
from raydiance.serve.engine.parts import Wave
from raydiance.serve.engine.planner import Planner, StepPrices
from raydiance.serve.engine.policies.base import Candidate, Reason, Rules
from raydiance.serve.engine.policies.registry import policy
from raydiance.serve.engine.ways import ALONE, Costs, Limits, Shape, Way

SYNC, LANES = SCHEDULES["synchronous"], SCHEDULES["lanes"]
UNGUIDED = Shape(1000)


def candidates(*kinds: tuple[str, int, int]) -> list[Candidate]:
    return [Candidate(str(i), key, tokens, branches, 10) for i, (key, tokens, branches) in enumerate(kinds)]


def costs_of(seconds: dict[Layout, float], limits: Limits | None = None) -> Costs:
    """Of a step of UNGUIDED."""
    costs = Costs(limits or Limits())
    for layout, s in seconds.items():
        costs.record(UNGUIDED, Way(layout, SYNC), s)
    return costs


def waves(waiting: list[Candidate], size: int, costs: Costs, **rules: int) -> list[Wave]:
    """Until each was stepped once."""
    planner, found = Planner(policy(), costs, Rules(**rules)), []
    names = {candidate.id: i for i, candidate in enumerate(waiting)}
    while waiting:
        wave, reasons = planner.next(0.0, waiting, size)
        assert set(reasons) == {candidate.id for candidate in waiting}
        stepped = [i for part in wave for batch in part.batches for i in batch]
        ranks = [rank for part in wave for rank in part.mesh.subgroup.ranks]
        assert stepped
        assert len(stepped) == len(set(stepped))
        assert len(ranks) == len(set(ranks))
        assert max(ranks) < size
        found.append([(part, [[names[waiting[i].id] for i in batch] for batch in part.batches]) for part in wave])
        waiting = [candidate for i, candidate in enumerate(waiting) if i not in stepped]
    return found  # type: ignore[return-value]


def sizes(found: list[Wave]) -> list[list[tuple[int, int]]]:
    """By wave, of each part how many ranks, and how many are stepped on them."""
    return [[(part.mesh.subgroup.size, sum(map(len, batches))) for part, batches in wave] for wave in found]  # type: ignore[misc]


def test_one_takes_all_ranks_where_that_is_faster_and_one_where_it_is_not() -> None:
    one = candidates(("a", 1000, 1))
    assert sizes(waves(one, 2, costs_of({Layout(): 1.0, Layout(ulysses=2): 0.6}))) == [[(2, 1)]]
    assert sizes(waves(one, 2, costs_of({Layout(): 1.0, Layout(ulysses=2): 1.6}))) == [[(1, 1)]]


def test_two_take_half_of_the_ranks_each() -> None:
    two = candidates(("a", 1000, 1), ("b", 1000, 1))
    assert sizes(waves(two, 2, costs_of({Layout(): 1.0, Layout(ulysses=2): 0.6}))) == [[(1, 1), (1, 1)]]


def test_two_of_one_kind_take_a_rank_each_where_a_batch_was_measured_to_win_nothing() -> None:
    costs = costs_of({Layout(): 1.0, Layout(ulysses=2): 0.6})
    for _ in range(3):
        costs.record(Shape(1000, 2), ALONE, 2.0)
        costs.record(Shape(1000, 2), Way(Layout(ulysses=2), SYNC), 1.2)
    two = candidates(("a", 1000, 1), ("a", 1000, 1))
    assert sizes(waves(two, 2, costs)) == [[(1, 1), (1, 1)]]


def test_two_that_need_all_ranks_share_them_in_lanes_where_that_was_measured_to_be_faster() -> None:
    costs = costs_of({Layout(ulysses=2): 1.0}, Limits(cfg=1, ring=1, max_ulysses=2))
    costs.record(UNGUIDED, ALONE, 1e9)
    two = candidates(("a", 1000, 1), ("b", 1000, 1))
    only_both = [Candidate(c.id, c.key, c.num_tokens, 1, 10, deadline=11.0) for c in two]  # on one rank they are late
    lanes = Way(Layout(ulysses=2), LANES)
    assert sizes(waves(only_both, 2, costs)) == [[(2, 1)], [(2, 1)]]
    costs.record(Shape(1000, num_batches=2), lanes, 1.05)
    [[(part, batches)]] = waves(only_both, 2, costs)  # type: ignore[misc]
    assert (sorted(batches), part.way) == ([[0], [1]], lanes)
    hurried = [Candidate(c.id, c.key, c.num_tokens, 1, 10, deadline=10.2) for c in two]
    costs.record(Shape(1000, num_batches=2), lanes, 1.05)
    assert len(waves(hurried, 2, costs)[0][0][1]) == 1  # lanes would make the first one late


def test_two_in_lanes_are_known_by_the_work_of_both() -> None:
    costs = costs_of({Layout(ulysses=2): 1.0}, Limits(max_ulysses=2, ring=1))
    costs.record(UNGUIDED, ALONE, 1e9)
    costs.record(Shape(1000, num_batches=2), Way(Layout(ulysses=2), LANES), 1.9)
    large, small = Candidate("0", "a", 5000, 1, 1, deadline=1e6), Candidate("1", "b", 500, 1, 1, deadline=1e7)
    [[(part, _)]] = waves([large, small], 2, costs)  # type: ignore[misc]
    assert part.schedule.lanes
    assert part.shape.work == 5500


def test_who_has_too_few_tokens_for_a_layout_is_in_no_lane_of_it() -> None:
    costs = Costs(Limits(max_ulysses=1))
    costs.record(Shape(1000, 1, 2), Way(Layout(cfg=2, ring=2), SYNC), 1.0)
    costs.record(Shape(1000, 1, 2, 2), Way(Layout(ring=4), LANES), 0.1)
    found = waves(candidates(("a", 5000, 2), ("b", 3, 2)), 4, costs)
    [of_tiny] = [part for wave in found for part, batches in wave if any(1 in batch for batch in batches)]  # type: ignore[misc]
    assert of_tiny.mesh.layout.sequence <= 3


def test_those_that_need_other_numbers_of_ranks_are_all_stepped() -> None:
    """Guidance branches on two ranks, and nothing else split: a step without guidance takes one."""
    costs = Costs(Limits(max_ulysses=1, ring=1, cfg=2))
    found = waves(candidates(("guided", 1000, 2), ("plain", 1000, 1), ("more", 500, 1)), 2, costs)
    layouts = {i: part.mesh.layout for wave in found for part, batches in wave for b in batches for i in b}  # type: ignore[misc]
    assert layouts == {0: Layout(cfg=2), 1: Layout(), 2: Layout()}


def test_no_layout_is_an_error_with_the_numbers() -> None:
    planner = Planner(policy(), Costs(Limits(ring=8)))
    with pytest.raises(ValueError, match=r"no layout of 4 ranks for 1000 tokens within .*ring=8"):
        planner.check(UNGUIDED, 4)


def test_a_batch_that_did_not_fit_is_not_made_again() -> None:
    costs = costs_of({Layout(): 1.0})
    four = candidates(*[("a", 1000, 1)] * 4)
    planner = Planner(policy(), costs)
    [part], reasons = planner.next(0.0, four, 1)
    assert part.batches == ((0, 1, 2, 3),)
    assert list(reasons.values()).count(Reason.BATCHED) == 3
    [part], _ = planner.below(4000).next(0.0, four, 1)
    assert len(part.batches[0]) < 4
    assert planner.below(4000).below(10_000).rules.max_batch_tokens == 3999


def test_what_was_measured_has_its_price_and_what_cannot_be_has_none() -> None:
    prices = StepPrices(costs_of({Layout(): 1.0}, Limits(cfg=1, ring=1, max_ulysses=2)))
    assert prices.seconds(UNGUIDED, 1) == 1.0
    assert prices.seconds(UNGUIDED, 4) is None
    bare = StepPrices(Costs())
    assert bare.seconds(Shape(2000), 1) == pytest.approx(2 * bare.seconds(UNGUIDED, 1))  # type: ignore[operator]
    assert bare.seconds(UNGUIDED, 2) == pytest.approx(bare.seconds(UNGUIDED, 1) / 2)  # type: ignore[operator]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(8, 5000), st.sampled_from([1, 2])), min_size=1, max_size=12),
    st.sampled_from([1, 2, 4, 8]),
    st.dictionaries(st.sampled_from([Layout(), Layout(ulysses=2), Layout(ring=2), Layout(cfg=2)]), st.floats(0.1, 9)),
    st.integers(1, 4),
)
def test_everyone_is_stepped_on_ranks_that_are_apart(
    items: list[tuple[str, int, int]], size: int, seconds: dict[Layout, float], max_batch_size: int
) -> None:
    costs = Costs()
    for branches in (1, 2):
        for layout, s in seconds.items():
            costs.record(Shape(1000, 1, branches), Way(layout, SYNC), s)
    kinds = [(f"{key}{tokens}{branches}", tokens, branches) for key, tokens, branches in items]
    for wave in waves(candidates(*kinds), size, costs, max_batch_size=max_batch_size):
        for part, batches in wave:  # type: ignore[misc]
            assert all(len({kinds[i][0] for i in batch}) == 1 for batch in batches)
            assert all(len(batch) <= max_batch_size for batch in batches)
            assert part.schedule.fits(part.mesh.layout)
