"""Does it pay to route by seconds of work? Mixed shapes to replicas that each do one sample after the other: by work
(`raydiance.serve.stages.loads`, as the dispatcher's router does), round-robin, and to the replica with fewest requests.

    python load_tests/bench_routing.py [--quick] [--json FILE] [--replicas 8] [--mix wan] [--rounds 20]

Two loads, of the same requests for every rule: a campaign that is there at once, of which the makespan counts; and an
open-loop trace at 80% of what the replicas can do, of which the 95th percentile of the latency counts. What requests
take is arithmetic (sim_prices.py). With `--error 0.2` prices are wrong by up to so much, and what is served is not.
Nothing is reported where a rule lost a request, or ended before all its work could be done.
"""

from __future__ import annotations

import heapq
import itertools
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from random import Random

from report import median, metric, parser, publish
from sim_prices import SERVED, Roofline
from sim_results import nearest_rank
from trace_arrival import Arrival
from trace_points import poisson
from traces import MIXES

from raydiance.serve.stages import loads

GOAL = 0.15
UTILISATION = 0.8


@dataclass(frozen=True, slots=True)
class Request:
    """Args: price_s: what the router takes it for."""

    at_s: float
    seconds: float
    price_s: float


@dataclass(frozen=True, slots=True)
class Served:
    """Args: ends: of each request, in its order."""

    ends: tuple[float, ...]
    latencies: tuple[float, ...]

    @property
    def makespan_s(self) -> float:
        return max(self.ends)


class ByWork:
    """What a replica has not done yet, in seconds; the real ledger and order of the dispatcher's process."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._held: dict[int, ExitStack] = {}

    def choose(self, number: int, request: Request) -> str:
        chosen = loads.in_order(self._names, None)[0]
        self._held[number] = ExitStack()
        self._held[number].enter_context(loads.held(chosen, request.price_s))
        return chosen

    def done(self, number: int, replica: str) -> None:  # noqa: ARG002
        self._held.pop(number).close()


class RoundRobin:
    def __init__(self, names: Sequence[str]) -> None:
        self._next = itertools.cycle(names)

    def choose(self, number: int, request: Request) -> str:  # noqa: ARG002
        return next(self._next)

    def done(self, number: int, replica: str) -> None:
        """It remembers nothing."""


class LeastRequests:
    def __init__(self, names: Sequence[str]) -> None:
        self._counts = dict.fromkeys(names, 0)

    def choose(self, number: int, request: Request) -> str:  # noqa: ARG002
        chosen = min(self._counts, key=lambda name: (self._counts[name], name))
        self._counts[chosen] += 1
        return chosen

    def done(self, number: int, replica: str) -> None:  # noqa: ARG002
        self._counts[replica] -= 1


Rule = ByWork | RoundRobin | LeastRequests
RULES: dict[str, Callable[[Sequence[str]], Rule]] = {
    "by work": ByWork,
    "round-robin": RoundRobin,
    "least requests": LeastRequests,
}


def main() -> int:
    args = parser(__doc__)
    args.add_argument("--replicas", type=int, default=8)
    args.add_argument("--mix", choices=SERVED, default="wan")
    args.add_argument("--rounds", type=int, default=20, help="seeds")
    args.add_argument("--requests", type=int, default=80, help="of a campaign")
    args.add_argument("--error", type=float, default=0.0, help="of prices, at most")
    options = args.parse_args()
    rounds = 3 if options.quick else options.rounds
    spans: dict[str, list[float]] = {name: [] for name in RULES}
    tails: dict[str, list[float]] = {name: [] for name in RULES}
    for seed in range(rounds):
        asked = requests(options.mix, seed, options.error, options.requests)
        campaign = [replace(each, at_s=0.0) for each in asked]
        rate = UTILISATION * options.replicas / (sum(r.seconds for r in asked) / len(asked))
        trace = requests(options.mix, seed, options.error, 10 * options.requests, rate)
        for name, rule in RULES.items():
            for load, found in ((campaign, spans), (trace, tails)):
                served = serve(load, rule, options.replicas)
                if (wrong := mistake(load, served, options.replicas)) is not None:
                    print(f"not reported: {name}, seed {seed}: {wrong}", file=sys.stderr)
                    return 1
                value = served.makespan_s if found is spans else nearest_rank(served.latencies, 0.95)
                found[name].append(value)
    ours = "by work"
    metrics = {}
    for other in ("round-robin", "least requests"):
        short = other.replace(" ", "_").replace("-", "_")
        shorter = [1 - a / b for a, b in zip(spans[ours], spans[other], strict=True)]
        tail = [1 - a / b for a, b in zip(tails[ours], tails[other], strict=True)]
        metrics[f"makespan_below_{short}"] = metric(median(shorter), "share", f">= {GOAL}")
        metrics[f"p95_below_{short}"] = metric(median(tail), "share", "-")
    for name in RULES:
        short = name.replace(" ", "_").replace("-", "_")
        metrics[f"makespan_{short}"] = metric(median(spans[name]), "s", "-")
        metrics[f"p95_{short}"] = metric(median(tails[name]), "s", "-")
    publish(metrics | {"rounds": metric(rounds, "", "-")}, options.json)
    return 0


def requests(mix: str, seed: int, error: float, count: int, rate: float = 1.0) -> list[Request]:
    """Args:
    rate: requests a second.
    """
    served = SERVED[mix]
    prices, rng = Roofline(served.model), Random(f"{seed}/prices")  # noqa: S311
    arrivals = poisson(2 * count / rate, rate, seed, MIXES[mix])[:count]

    def one(arrival: Arrival) -> Request:
        seconds = arrival.steps * (prices.seconds(served.shape(arrival), 1) or 0.0)
        return Request(arrival.at_s, seconds, seconds * (1 + rng.uniform(-error, error)))

    return [one(arrival) for arrival in arrivals]


def serve(load: Sequence[Request], rule: Callable[[Sequence[str]], Rule], num_replicas: int) -> Served:
    """Each request goes to a replica when it comes, and is done there after those that came before."""
    router = rule([f"replica-{i}" for i in range(num_replicas)])
    free_at: dict[str, float] = {}
    running: list[tuple[float, int, str]] = []
    ends, latencies = [], []
    for number, request in enumerate(load):
        while running and running[0][0] <= request.at_s:
            _, done, where = heapq.heappop(running)
            router.done(done, where)
        where = router.choose(number, request)
        end = max(free_at.get(where, 0.0), request.at_s) + request.seconds
        free_at[where] = end
        heapq.heappush(running, (end, number, where))
        ends.append(end)
        latencies.append(end - request.at_s)
    for _, done, where in running:
        router.done(done, where)
    return Served(tuple(ends), tuple(latencies))


def mistake(load: Sequence[Request], served: Served, num_replicas: int) -> str | None:
    """What cannot be; None where there is nothing."""
    if len(served.ends) != len(load):
        return f"{len(load)} requests came, {len(served.ends)} ended"
    if any(latency < r.seconds - 1e-6 for latency, r in zip(served.latencies, load, strict=True)):
        return "one took less time than it takes"
    work = sum(r.seconds for r in load)
    if (served.makespan_s - load[0].at_s) * num_replicas < work - 1e-6:
        return f"{work:.0f} s of work ended after {served.makespan_s:.0f} s on {num_replicas}"
    if any(loads.of(f"replica-{i}") for i in range(num_replicas)):
        return "the ledger still holds work"
    return None


if __name__ == "__main__":
    sys.exit(main())
