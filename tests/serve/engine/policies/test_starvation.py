"""Nothing starves: the bound that the policy states, held by worlds that would starve something without it."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from tests.serve.engine.policies.tables import Table
from tests.serve.engine.policies.tiny import World

from raydiance.serve.engine.policies.base import Candidate, Rules
from raydiance.serve.engine.policies.registry import policy

PATIENCE_S, LONGEST_S, UNTIL_S = 20.0, 4.0, 400.0


def world(seed: int, patience_s: float, told: bool) -> tuple[World, list[Candidate]]:
    """Deadlines that take nearly all there is, and others that have none; one kind of them takes every rank at once."""
    rng = random.Random(seed)
    size = rng.choice((1, 2, 4))
    table = Table(
        {
            1: {n: 1.0 + rng.random() for n in (1,)},
            2: {1: 2.0 + rng.random(), 2: 1.6},
            3: {size: rng.uniform(1.0, LONGEST_S)},
        }
    )
    count = 2 * size
    dated = []
    for i in range(count):
        tokens = rng.choice((1, 2))
        steps = int(size * UNTIL_S * 1.2 / count / table.seconds_of[tokens][1])
        dated.append(Candidate(f"dated{i}", tokens, tokens, 1, steps, deadline=UNTIL_S * 1.25))
    others = [
        Candidate(f"other{i}", t, t, 1, 200, tier=rng.choice(("batch", "interactive"))) for i, t in enumerate((1, 2, 3))
    ]
    rules = Rules(max_batch_size=2, patience_s=patience_s, quantum_s=rng.choice((0.0, 3.0)))
    return World(policy(), table, size, rules, told=told), [*dated, *others]


def longest_wait(world: World, candidates: list[Candidate]) -> float:
    """From the beginning of a step, or from 0, to the beginning of the next one, or to the end of the world."""
    waits = []
    for c in candidates:
        ends = world.finished.get(c.id, UNTIL_S)
        moments = [0.0, *world.steps.get(c.id, []), max(ends, 0.0)]
        waits += [b - a for a, b in pairwise(moments)]
    return max(waits)


@pytest.mark.parametrize("told", [True, False], ids=["told of steps in progress", "not told"])
def test_nothing_waits_beyond_the_bound(told: bool) -> None:
    for seed in range(12):
        made, candidates = world(seed, PATIENCE_S, told)
        made.run(candidates, until=UNTIL_S)
        step_s = max(s for prices in made.prices.seconds_of.values() for s in prices.values()) * 1.5  # type: ignore[attr-defined]
        bound_s = PATIENCE_S + 2 * len(candidates) * step_s
        assert longest_wait(made, candidates) <= bound_s + step_s, seed


def test_without_patience_something_starves() -> None:
    waits = []
    for seed in range(5):
        made, candidates = world(seed, math.inf, told=True)
        made.run(candidates, until=UNTIL_S)
        waits.append(longest_wait(made, candidates))
    assert max(waits) > UNTIL_S / 2


def test_shares_are_fair_under_saturation() -> None:
    """Two tenants with more work than there are ranks, one owed three times the other's: it has that in a minute."""
    table = Table({1: {1: 0.2, 2: 0.12}, 2: {1: 0.5, 2: 0.3}})
    rng = random.Random(7)
    candidates = []
    for i in range(120):
        tokens = rng.choice((1, 2))
        deadline = rng.choice((math.inf, rng.uniform(5.0, 60.0)))
        candidates.append(Candidate(f"t{i}", tokens, tokens, 1, 20, deadline=deadline, tenant="ab"[i % 2]))
    rules = Rules(max_batch_size=1, shares={"a": 3.0})
    served = {"a": 0.0, "b": 0.0}
    made = Metered(policy(), table, 2, rules, served=served, tenants={c.id: c.tenant for c in candidates})
    made.run(candidates, until=60.0)
    assert served["a"] / sum(served.values()) == pytest.approx(0.75, abs=0.075)


class Metered(World):
    """Tells the policy what each tenant was served."""

    def __init__(self, *args: object, served: dict[str, float], tenants: dict[str, str], **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]
        self.rules = Rules(max_batch_size=self.rules.max_batch_size, shares=self.rules.shares, served=served)
        inner = self.policy

        class Told:
            def plan(self, *question: object) -> object:
                plan = inner.plan(*question)  # type: ignore[arg-type]
                here = {c.id: c for c in question[1]}  # type: ignore[attr-defined]
                for a in plan.assignments:
                    for its_id in a.ids:
                        seconds = question[3].seconds(here[its_id].shape, a.ranks.size)  # type: ignore[attr-defined]
                        served[tenants[its_id]] += seconds * a.ranks.size
                return plan

        self.policy = Told()  # type: ignore[assignment]
