"""Streams dealt out over ranks and halves: everything is there once, and shares are even."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raydiance.parallel.dealing import Dealing
from raydiance.parallel.mesh import enclosing

lengths = st.dictionaries(st.sampled_from(["video", "text", "image", "audio"]), st.integers(0, 23), min_size=1)


@given(lengths, st.integers(1, 8), st.integers(1, 2), st.data())
def test_what_is_cut_is_joined_again(lengths: dict[str, int], ranks: int, halves: int, data: st.DataObject) -> None:
    streams = data.draw(st.lists(st.sampled_from(sorted(lengths)), min_size=1, unique=True))
    dealing = Dealing(lengths, ranks, halves)
    x = torch.arange(2 * sum(lengths[s] for s in streams)).view(-1, 2)
    held = [[dealing.cut(x, 0, streams, rank, half) for rank in range(ranks)] for half in range(halves)]
    assert [[len(t) for t in by_rank] for by_rank in held] == [dealing.held(streams, half) for half in range(halves)]
    assert torch.equal(dealing.join(held, streams), x)


@given(lengths, st.integers(1, 8))
def test_the_shares_of_all_streams_are_even(lengths: dict[str, int], ranks: int) -> None:
    held = Dealing(lengths, ranks).held(tuple(lengths))
    assert max(held) - min(held) <= (len(lengths) + 1) // 2


def test_a_wrong_number_is_refused() -> None:
    with pytest.raises(ValueError, match=r"7 tokens along dim 1 of \[1, 7, 2\] are not 3 of text, 5 of image"):
        Dealing({"text": 3, "image": 5}, 2).cut(torch.zeros(1, 7, 2), 1, ("text", "image"), 0)


@given(st.lists(st.integers(0, 63), min_size=1))
def test_the_enclosing_subgroup_is_the_smallest(ranks: list[int]) -> None:
    found = enclosing(ranks)
    assert set(ranks) <= set(found.ranks)
    if found.size > 1:  # neither half has them all
        middle = found.start + found.size // 2
        assert min(ranks) < middle <= max(ranks)
