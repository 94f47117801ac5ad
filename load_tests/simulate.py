"""What would a policy of the step scheduler do on so many GPUs? Discrete events, the same `plan()` as the server's.

    python load_tests/simulate.py --policy fifo slack --ranks 8 --trace agents --seconds 3600 --rate 0.1 --seed 1

A request should be done within `slo_scale` times its isolated latency: all its steps alone on idle ranks, at the degree
that is best for it (`isolated_s` in sim_prices.py). What a step costs is arithmetic (sim_prices.py), not measured.
`tetriserve:3` is that policy with rounds of 3 s: its paper takes about five steps, and steps here take up to 20 s.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sim_clock import Simulation
from sim_prices import INFLATION, MAX_DEGREE, SERVED, Roofline, Served
from sim_results import Run
from traces import MIXES, TRACES, Arrival, read, told

from raydiance.serve.engine.policies import registry
from raydiance.serve.engine.policies.base import Policy, Rules
from raydiance.serve.engine.policies.tetriserve import TetriServe

COLUMNS = (
    ("policy", "policy", "{}"),
    ("attainment", "in SLO", "{:.1%}"),
    ("goodput_per_s", "goodput/s", "{:.4f}"),
    ("utilisation", "util", "{:.0%}"),
    ("latency_p50_s", "p50 s", "{:.1f}"),
    ("latency_p95_s", "p95 s", "{:.1f}"),
    ("latency_p99_s", "p99 s", "{:.1f}"),
    ("longest_wait_s", "longest wait s", "{:.1f}"),
    ("preemptions", "preempted", "{}"),
    ("degree_changes", "changes", "{}"),
    ("gpu_s", "GPU-s", "{:.0f}"),
    ("plans", "plans", "{}"),
    ("wall_s", "wall s", "{:.1f}"),
)


@dataclass(frozen=True, slots=True)
class Replica:
    """What is simulated, but for policy and trace."""

    served: Served
    prices: Roofline
    num_ranks: int
    rules: Rules
    stint_s: float = 0.0

    def simulate(
        self, policy: str, trace: Sequence[Arrival], window_s: float, give_up_below: float = 0.0, keep: bool = False
    ) -> Run:
        return Simulation(
            trace,
            policy_of(policy),
            self.prices,
            self.served.shape,
            self.num_ranks,
            self.rules,
            window_s=window_s,
            stint_s=self.stint_s,
            give_up_below=give_up_below,
            keep=keep,
        ).run()


def policy_of(spec: str) -> Policy:
    """Of a name, or of the name of one that has rounds and their seconds.

    Raises ValueError for what is neither.
    """
    name, colon, round_s = spec.partition(":")
    policy = registry.policy(name)
    if not colon:
        return policy
    if not isinstance(policy, TetriServe) or not float(round_s) > 0:
        raise ValueError(f"policy={spec!r}: only tetriserve has rounds, of more than 0 s")
    return replace(policy, round_s=float(round_s))


def policy_spec(spec: str) -> str:
    """For argparse, which says what is wrong and ends."""
    policy_of(spec)
    return spec


def with_slo(trace: Sequence[Arrival], slo_scale: float | None) -> list[Arrival]:
    """The same requests, all within so many times their isolated latency; as they are without it."""
    return list(trace) if slo_scale is None else [replace(arrival, slo_scale=slo_scale) for arrival in trace]


def table(rows: Sequence[dict[str, Any]], columns: Sequence[tuple[str, str, str]] = COLUMNS) -> str:
    """Args:
    columns: key, heading and format of each.
    """
    cells = [
        [heading for _, heading, _ in columns],
        *([form.format(row[key]) for key, _, form in columns] for row in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


def replica_options(args: argparse.ArgumentParser) -> None:
    args.add_argument("--model", choices=SERVED, default="wan")
    args.add_argument("--max-degree", type=int, default=MAX_DEGREE, help="ranks of one request at most")
    args.add_argument("--inflation", type=float, default=INFLATION, help="more GPU-seconds for every doubling of ranks")
    args.add_argument("--stint-s", type=float, default=0.0, help="plan several steps at once, for so long")
    args.add_argument("--slo-scale", type=float, help="of all requests, instead of the trace's by tier")
    args.add_argument("--headroom", type=int, default=Rules().headroom, help="ranks that the tier batch leaves free")
    args.add_argument("--patience-s", type=float, default=Rules().patience_s, help="bound against starvation")


def replica(options: argparse.Namespace, num_ranks: int) -> Replica:
    served = SERVED[options.model]
    prices = Roofline(served.model, inflation=options.inflation, max_degree=options.max_degree)
    rules = Rules(headroom=options.headroom, patience_s=options.patience_s)
    return Replica(served, prices, num_ranks, rules, options.stint_s)


def maker(
    kind: str, seconds: float, seed: int, model: str, slo_scale: float | None
) -> Callable[[float], list[Arrival]]:
    """From the rate to the trace."""
    return lambda rate: with_slo(TRACES[kind](seconds, rate, seed, MIXES[model]), slo_scale)


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument(
        "--policy",
        nargs="+",
        type=policy_spec,
        default=[registry.DEFAULT],
        metavar="POLICY",
        help=", ".join(registry.NAMES),
    )
    args.add_argument("--ranks", type=int, default=8)
    args.add_argument("--trace", default="agents", help=f"{', '.join(TRACES)}, or a file of traces.py")
    args.add_argument("--seconds", type=float, default=3600)
    args.add_argument("--rate", type=float, default=0.1, help="requests a second, on average")
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--json", type=Path, metavar="FILE", help="write every request and every sum there")
    replica_options(args)
    options = args.parse_args()
    if options.trace in TRACES:
        make = maker(options.trace, options.seconds, options.seed, options.model, options.slo_scale)
        trace, window_s = make(options.rate), options.seconds
    else:
        trace = with_slo(read(Path(options.trace)), options.slo_scale)
        window_s = trace[-1].at_s if trace else 0.0
    if not trace:
        print("the trace has no requests", file=sys.stderr)
        return 1
    print(f"{told(trace)}; {SERVED[options.model].name} on {options.ranks} ranks")
    rows, runs = [], {}
    for policy in options.policy:
        started = time.perf_counter()
        run = replica(options, options.ranks).simulate(policy, trace, window_s)
        rows.append({"policy": policy, **run.summary(), "wall_s": time.perf_counter() - started})
        runs[policy] = {"summary": rows[-1], "requests": run.rows()}
    tiers = [(tier, tier, "{:.1%}") for tier in rows[0]["attainment_by_tier"]]
    print(table([row | row["attainment_by_tier"] for row in rows], [*COLUMNS[:2], *tiers, *COLUMNS[2:]]))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
