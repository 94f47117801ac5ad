"""What holds for every policy, whatever it is asked."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serve.engine.policies.strategies import NOW, Question, questions

from raydiance.serve.engine.policies import registry
from raydiance.serve.engine.policies.base import Plan, Reason
from raydiance.serve.engine.policies.slack import Slack

every_policy = pytest.mark.parametrize("name", registry.NAMES)
WAITS = {
    Reason.OTHERS_FIRST,
    Reason.TOO_LATE,
    Reason.QUANTUM,
    Reason.HEADROOM,
    Reason.FAIR_SHARE,
    Reason.GATHERING,
    Reason.NO_LAYOUT,
}


def ask(name: str, question: Question) -> Plan:
    return registry.policy(name).plan(NOW, question.candidates, question.ranks, question.prices, question.rules)


@every_policy
@settings(max_examples=100)
@given(question=questions())
def test_a_plan_can_be_done(name: str, question: Question) -> None:
    """Ranks are free and given once, everyone is stepped once or waits for a reason, batches keep the limits."""
    plan, rules = ask(name, question), question.rules
    given_ranks = [rank for a in plan.assignments for rank in a.ranks.ranks]
    assert len(given_ranks) == len(set(given_ranks))
    assert question.ranks.free.issuperset(given_ranks)
    stepped = [its_id for a in plan.assignments for its_id in a.ids]
    assert sorted([*stepped, *plan.waiting]) == sorted(c.id for c in question.candidates)
    by_id = {c.id: c for c in question.candidates}
    for a in plan.assignments:
        members = [by_id[its_id] for its_id in a.ids]
        assert len({c.key for c in members}) == 1
        assert len(members) <= rules.max_batch_size
        assert len(members) == 1 or sum(c.num_tokens for c in members) <= rules.max_batch_tokens
        longest = max(c.num_tokens for c in members)
        assert question.prices.seconds_of[longest].get(a.ranks.size) is not None
        assert a.reason not in WAITS
    assert WAITS.issuperset(plan.waiting.values())


def idle_beside_waiting(plan: Plan, question: Question) -> bool:
    """Whether a free rank is left while someone waits whom it would take."""
    left = len(question.ranks.free) - sum(a.ranks.size for a in plan.assignments)
    by_id = {c.id: c for c in question.candidates}
    could = [its_id for its_id in plan.waiting if 1 in question.prices.seconds_of[by_id[its_id].num_tokens]]
    return left > 0 and bool(could)


@every_policy
@settings(max_examples=100)
@given(question=questions(headroom=0, all_free=True))
def test_no_rank_is_idle_while_someone_waits_who_could_use_it(name: str, question: Question) -> None:
    assert not idle_beside_waiting(ask(name, question), question)


@pytest.mark.parametrize("name", [name for name in registry.NAMES if name != "tetriserve"])
@settings(max_examples=100)
@given(question=questions(headroom=0))
def test_nor_where_others_are_in_the_middle_of_a_step(name: str, question: Question) -> None:
    """But for the ranks that are gathered for one that needs several. Rounds end with idle ranks, which is how that
    policy gathers."""
    plan = ask(name, question)
    assert Reason.GATHERING in plan.waiting.values() or not idle_beside_waiting(plan, question)


@every_policy
@settings(max_examples=100)
@given(question=questions(), seed=st.integers(0, 1 << 30))
def test_the_same_input_gives_the_same_plan_in_whatever_order(name: str, question: Question, seed: int) -> None:
    plan = ask(name, question)
    assert ask(name, question) == plan
    shuffled = list(question.candidates)
    random.Random(seed).shuffle(shuffled)
    other = ask(name, Question(shuffled, question.ranks, question.prices, question.rules))
    assert other.assignments == plan.assignments
    assert dict(other.waiting) == dict(plan.waiting)


@every_policy
@settings(max_examples=60)
@given(question=questions())
def test_a_price_is_asked_for_once(name: str, question: Question) -> None:
    ask(name, question)
    assert set(question.prices.asked.values()) <= {1}


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="policy='lifo' is not one of fifo, edf, sjf, tetriserve, slack"):
        registry.policy("lifo")
    assert isinstance(registry.policy(), Slack)
