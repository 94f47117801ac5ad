"""Sizes that fit by count fit by place."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiance.parallel.mesh import Subgroup
from raydiance.serve.engine.policies.room import Room, blocks

SIZE = 16
free_ranks = st.frozensets(st.integers(0, SIZE - 1))
requests = st.lists(st.tuples(st.sampled_from((1, 2, 4, 8, 16)), st.booleans()), max_size=12)


def test_blocks_are_the_largest_that_are_wholly_free() -> None:
    assert blocks([1, 2, 3, 4, 5, 6, 7]) == {1: [1], 2: [2], 4: [4]}
    assert blocks([]) == {}
    assert blocks(range(8)) == {1: [], 2: [], 4: [], 8: [0]}


@given(free=free_ranks, requests=requests, withheld=st.tuples(st.integers(0, 3), st.integers(0, 4)))
def test_what_was_taken_has_places_that_are_free_and_apart(
    free: frozenset[int], requests: list[tuple[int, bool]], withheld: tuple[int, int]
) -> None:
    room, sizes = Room(free), []
    block = Subgroup(withheld[0] * 4, 4)
    kept_back: set[int] = set()
    for i, (size, doubled) in enumerate(requests):
        if i == withheld[1] and room.withhold(block):
            kept_back = set(block.ranks)
        if room.fits(size):
            room.take(size)
            if doubled and room.doubles(size):
                room.double(size)
                size *= 2
            sizes.append(size)
    places = room.places(sizes)
    assert [place.size for place in places] == sizes
    ranks = [rank for place in places for rank in place.ranks]
    assert len(ranks) == len(set(ranks))
    assert free.issuperset(ranks)
    assert kept_back.isdisjoint(ranks)
    assert room.num_free == len(free - kept_back) - len(ranks)


@pytest.mark.parametrize("free", [range(8), (0, 1, 2, 3, 5, 6, 7), (1, 2, 3, 4), (0, 2, 4, 6), (3, 4)])
def test_it_fits_exactly_if_there_is_a_way(free: range | tuple[int, ...]) -> None:
    """Beside trying every place of up to three subgroups."""
    for sizes in product((1, 2, 4, 8), repeat=3):
        room, fits = Room(free), True
        for size in sizes:
            if not room.fits(size):
                fits = False
                break
            room.take(size)
        assert fits == can_be_placed(frozenset(free), sizes), sizes


def can_be_placed(free: frozenset[int], sizes: tuple[int, ...]) -> bool:
    if not sizes:
        return True
    for start in range(0, 8, sizes[0]):
        ranks = frozenset(range(start, start + sizes[0]))
        if ranks <= free and can_be_placed(free - ranks, sizes[1:]):
            return True
    return False


def test_what_does_not_fit_is_refused() -> None:
    room = Room([1, 2, 3])
    with pytest.raises(ValueError, match="no room for 4 ranks"):
        room.take(4)
    room.take(1)
    with pytest.raises(ValueError, match="no room to make 2 ranks 4"):
        room.double(2)
    assert not room.withhold(Subgroup(0, 4))
