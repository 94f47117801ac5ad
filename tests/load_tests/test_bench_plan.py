"""The plan benchmark reports nothing of plans that cannot be done."""

from __future__ import annotations

import pytest
from bench_plan import NOW, NUM_RANKS, NUM_TRAJECTORIES, Formula, moment, plan_ms, problem_of

from raydiance.parallel.mesh import Subgroup
from raydiance.serve.engine.policies import registry
from raydiance.serve.engine.policies.base import Assignment, Candidate, Plan, Prices, Ranks, Reason, Rules


@pytest.mark.parametrize("name", registry.NAMES)
def test_every_policy_plans_a_moment(name: str) -> None:
    made = moment(0)
    assert (len(made[0]), len(made[1].free)) == (NUM_TRAJECTORIES, NUM_RANKS)
    assert len(plan_ms(registry.policy(name), [made], Formula())) == 1


def test_the_moment_is_an_overload_that_leaves_much_to_be_met() -> None:
    candidates, ranks, rules = moment(0)
    plan = registry.policy().plan(NOW, candidates, ranks, Formula(), rules)
    to_be_met = [r for r in plan.waiting.values() if r in (Reason.OTHERS_FIRST, Reason.QUANTUM)]
    given_up = [r for r in plan.waiting.values() if r in (Reason.TOO_LATE, Reason.FAIR_SHARE)]
    assert len(to_be_met) > NUM_TRAJECTORIES / 5
    assert len(given_up) > NUM_TRAJECTORIES / 5


class Twice:
    def plan(self, now: float, candidates: list[Candidate], ranks: Ranks, prices: Prices, rules: Rules) -> Plan:
        first, second, *others = candidates
        assignments = tuple(Assignment((c.id,), Subgroup(0, 1), Reason.IN_ORDER) for c in (first, second))
        return Plan(assignments, {c.id: Reason.OTHERS_FIRST for c in others})


def test_a_rank_that_is_given_twice_and_a_trajectory_that_is_forgotten_are_found() -> None:
    candidates, ranks, _ = moment(0)
    with pytest.raises(RuntimeError, match="a rank is given twice"):
        plan_ms(Twice(), [moment(0)], Formula())  # type: ignore[arg-type]
    assert problem_of(Plan((), {}), candidates, ranks) == "a trajectory is planned twice, or forgotten"
