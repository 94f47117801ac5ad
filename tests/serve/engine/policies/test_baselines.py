"""What the policies that ours is compared with decide."""

from __future__ import annotations

import math

import pytest
from tests.serve.engine.policies.tables import scaled
from tests.serve.engine.policies.tiny import World

from raydiance.serve.engine.policies.base import Candidate, Ranks, Reason, Rules
from raydiance.serve.engine.policies.registry import policy
from raydiance.serve.engine.policies.tetriserve import TetriServe

SECOND = scaled({1: 1.0, 2: 2.0}, 8)
NO_BATCHES = Rules(max_batch_size=1)


def job(its_id: str, deadline: float = math.inf, steps: int = 4, tokens: int = 1, **more: object) -> Candidate:
    return Candidate(its_id, tokens, tokens, 1, steps, deadline, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("fifo", ["first", "second", "third"]),
        ("sjf", ["third", "second", "first"]),
        ("edf", ["second", "first", "third"]),
    ],
)
def test_the_order_in_which_jobs_end(name: str, order: list[str]) -> None:
    jobs = [
        job("first", deadline=20.0, steps=5, since=-3.0),
        job("second", deadline=10.0, steps=4, since=-2.0),
        job("third", steps=3, since=-1.0),
    ]
    finished = World(policy(name), SECOND, 1).run(jobs)
    assert sorted(finished, key=finished.__getitem__) == order


@pytest.mark.parametrize("name", ["fifo", "sjf"])
def test_what_has_begun_is_not_displaced(name: str) -> None:
    world = World(policy(name), SECOND, 1, arrivals={"short": 1.5})
    finished = world.run([job("long", steps=9), job("short", steps=1, deadline=3.0)])
    assert finished["long"] == 9.0


def test_edf_displaces() -> None:
    world = World(policy("edf"), SECOND, 1, arrivals={"short": 1.5})
    assert world.run([job("long", steps=9), job("short", steps=1, deadline=3.0)])["short"] == 3.0


@pytest.mark.parametrize("name", ["fifo", "sjf"])
def test_a_fixed_degree(name: str) -> None:
    plan = policy(name).plan(0.0, [job("a", deadline=1.0)], Ranks.all_free(8), SECOND, NO_BATCHES)
    assert [a.ranks.size for a in plan.assignments] == [1]


@pytest.mark.parametrize("name", ["fifo", "sjf", "edf"])
def test_those_without_ranks_join_the_smallest_batch_of_their_kind(name: str) -> None:
    jobs = [job(str(i), since=float(i) - 20, deadline=100.0 + i) for i in range(5)]
    plan = policy(name).plan(0.0, jobs, Ranks.all_free(2), SECOND, Rules())
    assert sorted(len(a.ids) for a in plan.assignments) == [2, 3]


def test_tetriserve_packs_as_many_as_survive() -> None:
    """Of those that must go now, one needs all four ranks and the others one each."""
    jobs = [job("wide", deadline=1.65, steps=4), *[job(f"narrow{i}", deadline=4.2, steps=4) for i in range(4)]]
    plan = TetriServe(round_s=4.0).plan(0.0, jobs, Ranks.all_free(4), SECOND, NO_BATCHES)
    assert {its_id for a in plan.assignments for its_id in a.ids} == {f"narrow{i}" for i in range(4)}
    assert plan.waiting == {"wide": Reason.OTHERS_FIRST}


def test_tetriserve_begins_no_step_that_would_not_end_in_its_round() -> None:
    jobs = [job("a", deadline=30.0, tokens=2)]
    baseline = TetriServe(round_s=4.0)
    assert baseline.plan(1.9, jobs, Ranks(2, frozenset({0})), SECOND, NO_BATCHES).assignments
    assert not baseline.plan(2.1, jobs, Ranks(2, frozenset({0})), SECOND, NO_BATCHES).assignments
    assert baseline.plan(2.1, jobs, Ranks.all_free(2), SECOND, NO_BATCHES).assignments
