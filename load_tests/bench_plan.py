"""How long does a plan take? 1,000 trajectories on 128 ranks, of mixed shapes, deadlines, tiers and tenants.

    python load_tests/bench_plan.py [--quick] [--json FILE]

Each policy plans the same moments: about half of the trajectories can be on time, some are lost, some have no deadline.
Prices are a formula, and their calls are part of the time. Nothing is reported unless every plan can be done: no rank
and no trajectory twice, everyone stepped or told why not.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time

from report import metric, parser, publish

from raydiance.models.tier import TIERS
from raydiance.serve.engine.policies import registry
from raydiance.serve.engine.policies.base import Candidate, Plan, Policy, Prices, Ranks, Rules
from raydiance.serve.engine.ways import Shape

NUM_TRAJECTORIES, NUM_RANKS = 1000, 128
SIZES = (1024, 2304, 4096, 6889, 9216, 16384, 32760, 75600)
"""Tokens of a sequence: images from 512 x 512 on, videos of 480p and 720p."""
TENANTS = tuple(f"tenant{i}" for i in range(8))
NOW = 1_800_000_000.0
LOAD = 4.0
"""Of all deadlines, GPU-seconds on one rank over what the ranks have in the time that is given."""


class Formula:
    """Linear and quadratic in the tokens, 17% more GPU-seconds for each doubling, at most eight ranks."""

    def seconds(self, shape: Shape, num_ranks: int) -> float | None:
        if num_ranks > 8:
            return None
        row_s = 2e-5 * shape.num_tokens + 2e-10 * shape.num_tokens**2
        speedup = num_ranks / math.pow(1.17, math.log2(num_ranks))
        return 0.004 + row_s * shape.num_rows * shape.num_branches / speedup


def moment(seed: int) -> tuple[list[Candidate], Ranks, Rules]:
    rng, prices = random.Random(seed), Formula()  # noqa: S311
    alone = {tokens: {n: prices.seconds(Shape(tokens), n) or 0.0 for n in (1, 8)} for tokens in SIZES}
    mean_s = statistics.mean(alone[tokens][1] for tokens in SIZES) * 25
    horizon_s = 1.5 * mean_s * NUM_TRAJECTORIES / NUM_RANKS / LOAD
    candidates = []
    for i in range(NUM_TRAJECTORIES):
        tokens, branches, steps = rng.choice(SIZES), rng.choice((1, 2)), rng.randint(1, 50)
        fastest_s = steps * branches * alone[tokens][8]
        deadline = rng.choices((NOW + fastest_s + rng.uniform(0, horizon_s), NOW - 1.0, math.inf), (0.8, 0.05, 0.15))[0]
        since = NOW - rng.uniform(0, 50)
        candidates.append(
            Candidate(
                id=f"job-{i:04}",
                key=(tokens, branches, "model"),
                num_tokens=tokens,
                num_branches=branches,
                remaining_steps=steps,
                deadline=deadline,
                tier=rng.choice(TIERS),
                tenant=rng.choice(TENANTS),
                since=since,
                running_since=since if rng.random() < 0.1 else None,
            )
        )
    served = {tenant: rng.uniform(10, 100) for tenant in TENANTS}
    return candidates, Ranks.all_free(NUM_RANKS), Rules(headroom=8, quantum_s=1.0, served=served)


def problem_of(plan: Plan, candidates: list[Candidate], ranks: Ranks) -> str | None:
    """None if it can be done."""
    taken = [rank for a in plan.assignments for rank in a.ranks.ranks]
    if len(taken) != len(set(taken)) or not ranks.free.issuperset(taken):
        return "a rank is given twice, or was not free"
    told = [its_id for a in plan.assignments for its_id in a.ids] + list(plan.waiting)
    if sorted(told) != sorted(candidate.id for candidate in candidates):
        return "a trajectory is planned twice, or forgotten"
    return None


def plan_ms(policy: Policy, moments: list[tuple[list[Candidate], Ranks, Rules]], prices: Prices) -> list[float]:
    """Raises RuntimeError for a plan that cannot be done."""
    found = []
    for candidates, ranks, rules in moments:
        started = time.perf_counter()
        plan = policy.plan(NOW, candidates, ranks, prices, rules)
        found.append(1000 * (time.perf_counter() - started))
        if (problem := problem_of(plan, candidates, ranks)) is not None:
            raise RuntimeError(problem)
    return found


def main() -> int:
    args = parser(__doc__)
    args.add_argument("--moments", type=int, default=20, help="different ones, each planned for so often")
    options = args.parse_args()
    moments = [moment(seed) for seed in range(3 if options.quick else options.moments)]
    metrics = {}
    for name in (registry.DEFAULT, *(other for other in registry.NAMES if other != registry.DEFAULT)):
        policy, prices = registry.policy(name), Formula()
        try:
            plan_ms(policy, moments[:2], prices)  # warms up
            times = [ms for _ in range(3 if options.quick else 10) for ms in plan_ms(policy, moments, prices)]
        except RuntimeError as e:
            print(f"not reported: {name}: {e}", file=sys.stderr)
            return 1
        title = "plan_1000x128" if name == registry.DEFAULT else f"{name}_1000x128"
        metrics[f"{title}_ms"] = metric(statistics.median(times), "ms", "<= 5" if name == registry.DEFAULT else "-")
        metrics[f"{title}_p95_ms"] = metric(statistics.quantiles(times, n=20)[-1], "ms", "-")
    publish(metrics, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
