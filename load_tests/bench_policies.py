"""How much load does each policy of the step scheduler carry, simulated, with 95% of the requests in their SLO?

    python load_tests/bench_policies.py [--quick] [--json FILE] [--ranks 8 64] [--traces poisson agents]

For each policy, the highest arrival rate at which the share is still reached, by bisection over the rate of the same
trace (a higher rate brings the same requests closer together), and the requests in their SLO per second there. Nothing
is reported unless runs of a part of the trace add up: each step of each request computed once, no rank busy twice.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from report import metric, parser, publish
from sim_results import Run, mistakes
from simulate import Replica, maker, policy_spec, replica, replica_options, table
from traces import MIXES, TRACES, Arrival

from raydiance.serve.engine.policies import registry

OURS, PEER = "slack", "tetriserve"
ROUNDS_S = {"wan": (3, 10, 30), "flux": (1, 3, 10)}
"""Lengths of the peer's rounds: the best of them is what ours is compared with."""
GOAL = ">= 1.3"
ATTAINMENT = 0.95
SEEDS, SECONDS = {8: (1, 2, 3)}, {8: 3 * 3600.0}
"""By ranks; else one seed and half an hour: more ranks serve more requests in it."""
OTHER_SECONDS = 1800.0
LOWEST, HIGHEST, RESOLUTION, QUICK_RESOLUTION = 0.02, 1.28, 1.04, 1.2
"""Between which rates it is looked for, in units of the full one, and up to which factor it is found."""
CHECKED_SECONDS = 600.0
COLUMNS = (
    ("trace", "trace", "{}"),
    ("ranks", "ranks", "{}"),
    ("seed", "seed", "{}"),
    ("policy", "policy", "{}"),
    ("rate", "highest rate/s", "{:.4f}"),
    ("load", "of full", "{:.0%}"),
    ("goodput_per_s", "goodput/s", "{:.4f}"),
    ("attainment", "in SLO", "{:.1%}"),
    ("utilisation", "util", "{:.0%}"),
    ("latency_p95_s", "p95 s", "{:.1f}"),
    ("longest_wait_s", "longest wait s", "{:.1f}"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A trace on a replica."""

    kind: str
    seed: int
    seconds: float
    model: str
    slo_scale: float | None
    on: Replica

    def trace(self, rate: float, seconds: float | None = None) -> list[Arrival]:
        return maker(self.kind, seconds or self.seconds, self.seed, self.model, self.slo_scale)(rate)

    def full_rate(self) -> float:
        """At which all ranks would be busy if every sample were computed alone on one of them."""
        trace = TRACES[self.kind](200_000, 0.02, 0, MIXES[self.model])
        alone = [a.num * a.steps * self.on.prices.seconds(self.on.served.shape(a), 1) for a in trace]
        return self.on.num_ranks / fmean(alone)


def highest_rate(case: Case, policy: str, resolution: float) -> tuple[float, Run] | None:
    """By bisection, and the run there; None where LOWEST is too much."""
    full = case.full_rate()
    low, high = LOWEST * full, HIGHEST * full
    best = attempt(case, policy, low)
    if best is None:
        return None
    while high / low > resolution:
        middle = math.sqrt(low * high)
        run = attempt(case, policy, middle)
        if run is None:
            high = middle
        else:
            low, best = middle, run
    return low, best


def attempt(case: Case, policy: str, rate: float) -> Run | None:
    """The whole run, if it reaches ATTAINMENT."""
    if not (trace := case.trace(rate)):
        return None
    run = case.on.simulate(policy, trace, case.seconds, give_up_below=ATTAINMENT)
    return None if run.gave_up or run.attainment < ATTAINMENT else run


def wrong(case: Case, policy: str) -> list[str]:
    """What does not add up in a run at the full rate, and at a tenth of it."""
    found = []
    for load in (0.1, 1.0):
        trace = case.trace(load * case.full_rate(), min(case.seconds, CHECKED_SECONDS))
        if trace:
            found += mistakes(case.on.simulate(policy, trace, case.seconds, keep=True))
    return found


def metrics(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Ours over the peer with its best rounds, each the mean over all seeds; nothing where the peer has none."""
    found = {}
    for kind, ranks in dict.fromkeys((row["trace"], row["ranks"]) for row in rows):
        of_case = [row for row in rows if (row["trace"], row["ranks"]) == (kind, ranks)]
        goodput = {
            policy: fmean(row["goodput_per_s"] for row in of_case if row["policy"] == policy)
            for policy in {row["policy"] for row in of_case}
        }
        peer = max((each for policy, each in goodput.items() if policy.startswith(PEER)), default=0.0)
        name = "sim_goodput" if kind == "poisson" else f"sim_{kind}_goodput"
        if peer and OURS in goodput:
            found[f"{name}_vs_tetriserve_{ranks}"] = metric(goodput[OURS] / peer, "x", GOAL)
    return found


def row(case: Case, policy: str, resolution: float) -> dict[str, Any]:
    """Of the table."""
    head = {"trace": case.kind, "ranks": case.on.num_ranks, "seed": case.seed, "policy": policy}
    found = highest_rate(case, policy, resolution)
    if found is None:
        nothing = dict.fromkeys((key for key, _, _ in COLUMNS[4:]), 0.0)
        return {**head, **nothing}
    rate, run = found
    return {**head, "rate": rate, "load": rate / case.full_rate(), **run.summary()}


def add_rows(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    data = json.loads(file.read_text())
    data["rows"] = list(rows)
    file.write_text(json.dumps(data, indent=1))


def main() -> int:
    args = parser(__doc__)
    args.add_argument("--ranks", nargs="+", type=int)
    args.add_argument("--traces", nargs="+", choices=TRACES)
    args.add_argument("--policies", nargs="+", type=policy_spec, metavar="POLICY", help="as simulate.py takes them")
    args.add_argument("--seeds", nargs="+", type=int)
    args.add_argument("--seconds", type=float, help="length of a trace")
    replica_options(args)
    options = args.parse_args()
    ranks = options.ranks or ([8] if options.quick else [8, 64])
    traces = options.traces or (["poisson"] if options.quick else ["poisson", "agents"])
    peers = [f"{PEER}:{round_s}" for round_s in ROUNDS_S[options.model]]
    others = [] if options.quick else [name for name in registry.NAMES if name not in (OURS, PEER)]
    policies = options.policies or [*others, *peers, OURS]
    resolution = QUICK_RESOLUTION if options.quick else RESOLUTION
    cases = [
        Case(
            kind,
            seed,
            options.seconds or (OTHER_SECONDS if options.quick else SECONDS.get(count, OTHER_SECONDS)),
            options.model,
            options.slo_scale,
            replica(options, count),
        )
        for kind in traces
        for count in ranks
        for seed in options.seeds or ((1,) if options.quick else SEEDS.get(count, (1,)))
    ]
    for case in cases:
        for policy in policies:
            if found := wrong(case, policy):
                print(f"not reported: {policy} on {case.on.num_ranks} ranks: " + "; ".join(found[:5]), file=sys.stderr)
                return 1
    started, rows = time.monotonic(), []
    for case in cases:
        for policy in policies:
            rows.append(row(case, policy, resolution))
            print(
                f"{case.kind}, {case.on.num_ranks} ranks, seed {case.seed}, {policy}: {rows[-1]['rate']:.4f}/s, "
                f"{time.monotonic() - started:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    print(table(rows, COLUMNS) + "\n")
    publish(metrics(rows), options.json)
    if options.json is not None:
        add_rows(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
