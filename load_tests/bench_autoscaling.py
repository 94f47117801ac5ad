"""Which scaling policy meets more deadlines, for how many GPU-hours? An hour of agents whose sessions come eight times
as often for some minutes, in the simulator: Ray Serve's default policy over targets and delays, and ours.

    python load_tests/bench_autoscaling.py [--quick] [--json FILE] [--mix flux] [--rate 0.3] [--start-s 120]

Trace and bursts are fixed beforehand (trace_bursts.py). All policies have the same dispatcher, which is ours
(sim_scaling.py): only how many replicas there are differs. What requests take is arithmetic (sim_prices.py). Ours is
`raydiance.deploy.scaling` with its defaults, told of a start-up time that it has not measured yet. The default is asked
every second; its averages, delays and factors are those of Serve 2.60 (sim_scalers.py).

The best default is the one that meets most deadlines for no more GPU-hours than ours, chosen knowing this trace; the
cheapest equal is the one that meets as many as ours for fewest. Nothing is reported where samples were lost, done in
less time than they take, or more work was done than was paid for.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from report import metric, parser, publish
from sim_prices import SERVED, Roofline
from sim_scalers import Ours, ServeConfig, ServeDefault
from sim_scaling import Outcome, Scaler, Simulation
from simulate import table
from trace_arrival import Arrival
from trace_bursts import bursts
from traces import MIXES, told

from raydiance.deploy.scaling import Rules

TARGETS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
UP_S, DOWN_S = (0.0, 5.0, 30.0), (10.0, 30.0, 120.0, 600.0)
METRICS = ((5.0, 1.0), (30.0, 10.0))
"""Look-back period and interval of metrics; the second are Serve's defaults."""
COLUMNS = (
    ("name", "policy", "{}"),
    ("met", "met", "{:.1%}"),
    ("interactive", "interactive", "{:.1%}"),
    ("standard", "standard", "{:.1%}"),
    ("batch", "batch", "{:.1%}"),
    ("gpu_hours", "GPU-h", "{:.1f}"),
    ("peak", "peak", "{}"),
    ("changes", "changes", "{}"),
)


def main() -> int:
    args = parser(__doc__)
    args.add_argument("--mix", choices=SERVED, default="flux")
    args.add_argument("--rate", type=float, default=0.3, help="requests a second outside of bursts")
    args.add_argument("--start-s", type=float, default=120.0, help="until a replica serves")
    args.add_argument("--slo-scale", type=float, help="of interactive and standard requests, instead of 5")
    args.add_argument("--max-replicas", type=int, default=64)
    args.add_argument("--seed", type=int, default=1)
    options = args.parse_args()
    trace = bursts(3600, options.rate, options.seed, MIXES[options.mix])
    if options.slo_scale is not None:
        trace = [a if a.tier == "batch" else replace(a, slo_scale=options.slo_scale) for a in trace]
    served = SERVED[options.mix]
    prices = Roofline(served.model)

    def service_s(arrival: Arrival) -> float:
        return arrival.steps * (prices.seconds(served.shape(arrival), 1) or 0.0)

    def run(scaler: Scaler) -> Outcome:
        return Simulation(trace, service_s, scaler, options.start_s).run()

    hours = sum(map(service_s, trace)) / 3600
    print(f"{told(trace)}; {hours:.1f} GPU-hours of work; a replica starts in {options.start_s:g} s", flush=True)
    ours = run(Ours(Rules(max_replicas=options.max_replicas, start_s=options.start_s)))
    shipped = run(ServeDefault(ServeConfig(max_replicas=options.max_replicas)))
    swept = sweep(run, options.max_replicas, quick=options.quick)
    outcomes = {"ours": ours, "default as shipped": shipped, **swept}
    for name, outcome in outcomes.items():
        if wrong := outcome.mistakes():
            print(f"not reported: {name}: {wrong[0]}", file=sys.stderr)
            return 1
    defaults = {"default as shipped": shipped, **swept}
    best_name, best = best_within(defaults, ours.gpu_hours)
    equal_name, equal = cheapest(defaults, ours.attainment())
    chosen = {
        "ours": ours,
        "default as shipped": shipped,
        f"best within: {best_name}": best,
        f"cheapest equal: {equal_name}": equal,
    }
    print(table([_row(name, outcome) for name, outcome in chosen.items()], COLUMNS))
    publish(
        {
            "ours_met": metric(ours.attainment(), "share", ">= 0.9"),
            "ours_gpu_hours": metric(ours.gpu_hours, "h", "-"),
            "ours_changes": metric(ours.changes, "", "-"),
            "best_default_met": metric(best.attainment(), "share", "< 0.7, at no more GPU-hours than ours"),
            "best_default_gpu_hours": metric(best.gpu_hours, "h", "<= ours"),
            "equal_default_met": metric(equal.attainment(), "share", ">= ours"),
            "equal_default_gpu_hours": metric(equal.gpu_hours, "h", "> ours"),
            "shipped_met": metric(shipped.attainment(), "share", "-"),
            "shipped_gpu_hours": metric(shipped.gpu_hours, "h", "-"),
            "work_gpu_hours": metric(hours, "h", "-"),
            "defaults_tried": metric(len(swept) + 1, "", "-"),
        },
        options.json,
    )
    return 0


def sweep(run: Callable[[Scaler], Outcome], max_replicas: int, *, quick: bool) -> dict[str, Outcome]:
    """The default's outcomes, by its options."""
    grid = itertools.product(
        TARGETS, UP_S[::2] if quick else UP_S, DOWN_S[1::2] if quick else DOWN_S, METRICS[: 2 - quick]
    )
    found = {}
    for target, up_s, down_s, (look_back_s, interval_s) in grid:
        config = ServeConfig(target, up_s, down_s, look_back_s, interval_s, max_replicas=max_replicas)
        found[str(config)] = run(ServeDefault(config))
    return found


def best_within(outcomes: Mapping[str, Outcome], gpu_hours: float) -> tuple[str, Outcome]:
    """Of those that take no more GPU-hours, the one that meets most; the cheapest where all take more."""
    affordable = {name: each for name, each in outcomes.items() if each.gpu_hours <= gpu_hours}
    if not affordable:
        return min(outcomes.items(), key=lambda item: item[1].gpu_hours)
    return max(affordable.items(), key=lambda item: (item[1].attainment(), -item[1].gpu_hours))


def cheapest(outcomes: Mapping[str, Outcome], attainment: float) -> tuple[str, Outcome]:
    """Of those that meet no fewer deadlines, that of fewest GPU-hours; the one that meets most where all meet fewer."""
    equal = {name: each for name, each in outcomes.items() if each.attainment() >= attainment}
    if not equal:
        return max(outcomes.items(), key=lambda item: (item[1].attainment(), -item[1].gpu_hours))
    return min(equal.items(), key=lambda item: item[1].gpu_hours)


def _row(name: str, outcome: Outcome) -> dict[str, object]:
    tiers: Sequence[str] = ("interactive", "standard", "batch")
    return {
        "name": name,
        "met": outcome.attainment(),
        **{tier: outcome.attainment(tier) for tier in tiers},
        "gpu_hours": outcome.gpu_hours,
        "peak": outcome.peak,
        "changes": outcome.changes,
    }


if __name__ == "__main__":
    sys.exit(main())
