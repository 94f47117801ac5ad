"""Properties of the plan, over any arrivals and bounds."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiance.serve.engine.plan import PlanItem, plan

items = st.lists(st.builds(PlanItem, key=st.sampled_from("abc"), num_tokens=st.integers(1, 50)), max_size=30)
sizes = st.integers(1, 8)
tokens = st.integers(1, 100)


@given(items, sizes, tokens)
def test_each_item_is_in_one_batch_with_its_like(arrived, max_batch_size, max_batch_tokens):
    batches = plan(arrived, max_batch_size=max_batch_size, max_batch_tokens=max_batch_tokens)
    assert sorted(i for batch in batches for i in batch) == list(range(len(arrived)))
    assert all(len({arrived[i].key for i in batch}) == 1 for batch in batches)


@given(items, sizes, tokens)
def test_bounds_hold_but_for_an_item_that_is_larger_alone(arrived, max_batch_size, max_batch_tokens):
    for batch in plan(arrived, max_batch_size=max_batch_size, max_batch_tokens=max_batch_tokens):
        assert 1 <= len(batch) <= max_batch_size
        assert len(batch) == 1 or sum(arrived[i].num_tokens for i in batch) <= max_batch_tokens


@given(items, sizes, tokens)
def test_arrival_order_is_kept(arrived, max_batch_size, max_batch_tokens):
    batches = plan(arrived, max_batch_size=max_batch_size, max_batch_tokens=max_batch_tokens)
    assert [batch[0] for batch in batches] == sorted(batch[0] for batch in batches)
    for key in "abc":
        of_key = [i for batch in batches for i in batch if arrived[i].key == key]
        assert of_key == sorted(of_key)


@given(items, sizes, tokens)
def test_no_two_neighbouring_batches_of_a_key_would_have_fitted_together(arrived, max_batch_size, max_batch_tokens):
    batches = plan(arrived, max_batch_size=max_batch_size, max_batch_tokens=max_batch_tokens)
    for key in "abc":
        of_key = [batch for batch in batches if arrived[batch[0]].key == key]
        for one, two in itertools.pairwise(of_key):
            joined = sum(arrived[i].num_tokens for i in (*one, two[0]))
            assert len(one) == max_batch_size or joined > max_batch_tokens


def test_without_bounds_there_is_one_batch_a_key():
    assert plan([PlanItem(key, 10**6) for key in "abab"]) == [[0, 2], [1, 3]]
    assert plan([]) == []


def test_a_size_below_one_is_refused():
    with pytest.raises(ValueError, match="max_batch_size=0"):
        plan([PlanItem("a", 1)], max_batch_size=0)
