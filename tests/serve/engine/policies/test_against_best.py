"""Deadlines met beside the best schedule there is, in worlds small enough to try all schedules."""

from __future__ import annotations

import pytest
from tests.serve.engine.policies.tables import Table
from tests.serve.engine.policies.tiny import World, most_met, random_case

from raydiance.serve.engine.policies.base import Candidate
from raydiance.serve.engine.policies.registry import policy

CASES = 400


def share_met(name: str, cases: int) -> float:
    met = possible = 0
    for seed in range(cases):
        candidates, table, size = random_case(seed)
        finished = World(policy(name), table, size).run(candidates)
        met += sum(finished[c.id] <= c.deadline for c in candidates)
        possible += most_met(candidates, table, size)
    return met / possible


def test_meets_nearly_all_deadlines_that_can_be_met() -> None:
    assert share_met("slack", CASES) >= 0.97


@pytest.mark.parametrize(
    ("deadlines", "size", "met"),
    [((4.0, 4.0), 2, 2), ((4.0, 4.0), 1, 1), ((4.0, 8.0), 1, 2), ((3.0, 3.0), 2, 1), ((3.0, 4.0), 2, 1)],
)
def test_the_search_finds_what_is_found_by_hand(deadlines: tuple[float, ...], size: int, met: int) -> None:
    """Two trajectories of two steps, each of 2 s on one rank and 1.5 s on two."""
    table = Table({1: {1: 2.0, 2: 1.5}})
    candidates = [Candidate(str(i), 1, 1, 1, 2, deadline=d) for i, d in enumerate(deadlines)]
    assert most_met(candidates, table, size) == met


def test_no_policy_does_better_than_the_search() -> None:
    for seed in range(60):
        candidates, table, size = random_case(seed)
        possible = most_met(candidates, table, size)
        for name in ("fifo", "edf", "sjf", "tetriserve", "slack"):
            finished = World(policy(name), table, size).run(candidates)
            assert sum(finished[c.id] <= c.deadline for c in candidates) <= possible, (name, seed)
