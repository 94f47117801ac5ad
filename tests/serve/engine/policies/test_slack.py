"""What Raydiance's own policy decides, and why it says so."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import pytest
from tests.serve.engine.policies.tables import Table, scaled

from raydiance.parallel.mesh import Subgroup
from raydiance.serve.engine.policies.base import Candidate, Plan, Prices, Ranks, Reason, Rules, Stepping
from raydiance.serve.engine.policies.slack import Slack

SECOND = scaled({1: 1.0, 3: 3.0}, 8)
"""By tokens, seconds of a step on one rank; each doubling of the ranks costs 17% more."""


def job(its_id: str, deadline: float = math.inf, steps: int = 10, tokens: int = 1, **more: object) -> Candidate:
    return Candidate(its_id, tokens, tokens, 1, steps, deadline, **more)  # type: ignore[arg-type]


def plan(
    jobs: Iterable[Candidate],
    size: int = 1,
    rules: Rules | None = None,
    prices: Prices = SECOND,
    now: float = 0.0,
    ranks: Ranks | None = None,
) -> Plan:
    return Slack().plan(now, list(jobs), ranks or Ranks.all_free(size), prices, rules or Rules(max_batch_size=1))


def degrees(made: Plan) -> dict[str, int]:
    return {its_id: a.ranks.size for a in made.assignments for its_id in a.ids}


def test_takes_as_few_ranks_as_meet_the_deadline() -> None:
    others = [job(f"other{i}", deadline=200.0) for i in range(8)]
    assert degrees(plan([job("a", deadline=10.0), *others], 8))["a"] == 1
    assert degrees(plan([job("a", deadline=9.9), *others], 8))["a"] == 2
    assert degrees(plan([job("a", deadline=3.5), *others], 8))["a"] == 4


def test_ranks_that_are_left_go_to_whom_they_help_most() -> None:
    prices = Table({1: {1: 1.0, 2: 0.9}, 3: {1: 3.0, 2: 1.6}})
    jobs = [job("small", deadline=100.0), job("large", deadline=200.0, tokens=3)]
    made = plan(jobs, prices=prices, ranks=Ranks(4, frozenset({0, 1, 2})))
    assert degrees(made) == {"small": 1, "large": 2}
    assert degrees(plan([job("small", deadline=100.0)], 4)) == {"small": 4}


def test_ranks_that_help_nobody_are_left() -> None:
    slower_on_two = Table({1: {1: 1.0, 2: 1.1, 4: 0.5}})
    assert degrees(plan([job("a", deadline=100.0)], 2, prices=slower_on_two)) == {"a": 1}


def test_what_has_no_deadline_gets_ranks_before_others_get_more() -> None:
    made = plan([job("dated", deadline=10.0), *[job(f"idle{i}") for i in range(3)]], 4)
    assert set(degrees(made).values()) == {1}
    assert {a.ids: a.reason for a in made.assignments}["idle0",] is Reason.SPARE


def test_gives_up_the_costliest_where_not_all_can_be_met() -> None:
    made = plan([job("a", 10.0, steps=9), job("b", 11.0, steps=2), job("c", 12.0, steps=2)])
    assert made.assignments[0].ids == ("b",)
    assert made.waiting == {"a": Reason.TOO_LATE, "c": Reason.OTHERS_FIRST}


def test_what_is_lost_takes_no_rank_from_what_can_be_met() -> None:
    made = plan([job("lost", 2.0, steps=9, since=-9.0), job("met", 100.0)])
    assert made.assignments[0].ids == ("met",)
    assert made.assignments[0].reason is Reason.URGENT
    assert made.waiting == {"lost": Reason.TOO_LATE}


def test_what_cannot_wait_goes_before_an_earlier_deadline() -> None:
    """On two ranks: the last has no second to lose, the first two have nine each; unless more ranks make up for it."""
    jobs = [job("a", 10.0, steps=1), job("b", 10.0, steps=1), job("c", 11.0, steps=11)]
    assert set(degrees(plan(jobs, 2, prices=Table({1: {1: 1.0}})))) == {"a", "c"}
    assert set(degrees(plan(jobs, 2))) == {"a", "b"}


def test_counts_what_comes_after_the_steps_in_progress() -> None:
    """Three deadlines of which two fit on two ranks: the one in the middle of a step is the cheapest."""
    half_done = Stepping(job("half", 10.0, steps=5), Subgroup(0, 1), until=1.0)
    waiting = [job("a", 10.0, steps=8), job("b", 10.0, steps=9)]
    untold = plan(waiting, ranks=Ranks(2, frozenset({1})))
    told = plan(waiting, ranks=Ranks(2, frozenset({1}), (half_done,)))
    assert untold.waiting == {"b": Reason.OTHERS_FIRST}
    assert told.waiting == {"b": Reason.TOO_LATE}


@pytest.mark.parametrize(("deadline", "together"), [(100.0, True), (15.1, True), (14.9, False)])
def test_batches_where_every_member_can_afford_it(deadline: float, together: bool) -> None:
    """Two in one forward take half as long again, and ten such steps 15 s."""
    made = plan([job("a", deadline), job("b", 200.0)], rules=Rules())
    assert (made.assignments[0].ids == ("a", "b")) is together


@pytest.mark.parametrize(("row", "together"), [(0.85, True), (0.95, False), (1.5, False)])
def test_batches_only_where_that_is_cheaper_by_a_tenth(row: float, together: bool) -> None:
    """Each further row takes so much of the first one's time."""
    made = plan([job("a", 100.0), job("b", 200.0)], rules=Rules(), prices=Table({1: {1: 1.0}}, row=row))
    assert (made.assignments[0].ids == ("a", "b")) is together


def test_does_not_batch_while_another_cannot_wait_for_it() -> None:
    """A step of both takes 1.5 s; the third has 1.2 s of slack, enough for a step of one."""
    prices, rules = Table({1: {1: 1.0}, 2: {1: 1.0}}), Rules(quantum_s=2.0)
    pair, third = [job("a", running_since=-0.5), job("b")], job("c", deadline=12.2, steps=11, tokens=2)
    assert plan([*pair, third], rules=rules, prices=prices).assignments[0].ids == ("a",)
    assert plan([*pair, replace(third, deadline=20.0)], rules=rules, prices=prices).assignments[0].ids == ("a", "b")


def test_a_batch_is_halved_where_ranks_are_left() -> None:
    made = plan([job(str(i), 100.0) for i in range(4)], 2, Rules(), prices=Table({1: {1: 1.0}}))
    assert [a.ids for a in made.assignments] == [("0", "1"), ("2", "3")]
    as_fast_on_two = plan([job(str(i), 100.0) for i in range(4)], 2, Rules())
    assert [(len(a.ids), a.ranks.size) for a in as_fast_on_two.assignments] == [(4, 2)]


def test_what_runs_keeps_its_ranks_for_a_quantum() -> None:
    idle, dated = job("idle", running_since=-1.0), job("dated", 100.0)
    assert plan([idle, dated]).waiting == {"idle": Reason.OTHERS_FIRST}
    made = plan([idle, dated], rules=Rules(quantum_s=2.0, max_batch_size=1))
    assert made.waiting == {"dated": Reason.QUANTUM}


def test_what_has_waited_too_long_comes_first() -> None:
    made = plan([job("old", since=-61.0), job("dated", 10.0)])
    assert made.assignments[0].ids == ("old",)
    assert made.assignments[0].reason is Reason.AGED


def test_batch_tier_leaves_headroom() -> None:
    jobs, rules = [job(str(i), tier="batch") for i in range(4)], Rules(headroom=3, max_batch_size=1)
    made = plan(jobs, 4, rules)
    assert degrees(made) == {"0": 1}
    assert set(made.waiting.values()) == {Reason.HEADROOM}
    assert degrees(plan([*jobs, job("now", tier="interactive")], 4, rules)) == {"now": 4}
    assert len(degrees(plan([replace(jobs[0], since=-61.0), *jobs[1:]], 2, rules))) == 1


def test_a_tier_comes_before_another_and_the_oldest_first_in_it() -> None:
    jobs = [job("batch", tier="batch", since=-5.0), job("young", since=-1.0), job("old", since=-2.0)]
    assert plan(jobs).assignments[0].ids == ("old",)
    assert plan([*jobs, job("now", tier="interactive")]).assignments[0].ids == ("now",)
    assert plan([*jobs, job("going", since=0.0, running_since=-3.0)]).assignments[0].ids == ("going",)


def test_a_tenant_above_its_share_waits_for_one_below() -> None:
    rules = Rules(max_batch_size=1, served={"a": 10.0, "b": 6.0})
    old, new = job("a", since=-9.0, tenant="a"), job("b", tenant="b")
    made = plan([old, new], rules=rules)
    assert made.waiting == {"a": Reason.FAIR_SHARE}
    assert plan([old, new], rules=replace(rules, shares={"a": 2.0})).assignments[0].ids == ("a",)
    assert plan([old, replace(new, tier="batch")], rules=rules).assignments[0].ids == ("a",)
    assert len(plan([old, new], 2, rules).assignments) == 2


def test_of_deadlines_that_cannot_all_be_met_those_above_their_share_are_given_up() -> None:
    rules = Rules(max_batch_size=1, served={"a": 10.0, "b": 6.0})
    jobs = [job("a", 10.0, steps=2, tenant="a"), job("b", 10.0, steps=9, tenant="b")]
    assert plan(jobs, rules=rules).waiting == {"a": Reason.FAIR_SHARE}
    assert plan(jobs, rules=replace(rules, served={})).waiting == {"b": Reason.TOO_LATE}


def test_ranks_are_gathered_for_what_needs_several() -> None:
    """Rank 0 is free, rank 1 ends soon, ranks 2 and 3 later: two are needed, on ranks 0 and 1."""
    stepping = tuple(Stepping(job(f"busy{rank}", steps=9), Subgroup(rank, 1), until=1.0 * rank) for rank in (1, 2, 3))
    ranks = Ranks(4, frozenset({0}), stepping)
    made = plan([job("wide", 6.0), job("idle")], ranks=ranks)
    assert made.waiting == {"wide": Reason.GATHERING, "idle": Reason.OTHERS_FIRST}
    assert made.assignments == ()
    later = plan([job("wide", 6.0), job("idle")], now=1.0, ranks=Ranks(4, frozenset({0, 1}), stepping[1:]))
    assert [(a.ids, a.ranks) for a in later.assignments] == [(("wide",), Subgroup(0, 2))]


def test_what_no_layout_takes_says_so() -> None:
    made = plan([job("a")], prices=Table({1: {2: 1.0}}))
    assert made.waiting == {"a": Reason.NO_LAYOUT}
