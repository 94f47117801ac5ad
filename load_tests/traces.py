"""Arrival traces, the same for the same seed: what the simulator and the load generators replay.

    python load_tests/traces.py agents --seconds 600 --rate 1.5 --seed 1 -o trace.jsonl

Kinds: `poisson`; `mmpp` (calm and bursts); `agents` (sessions of bursts of 4 to 8, 1 to 3 s of thinking between them,
images mixed with videos); `humans` (sessions shaped as in Alibaba's GenTD26 trace). A higher rate brings the same
sessions closer together; it does not change what they ask for.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from trace_arrival import Arrival, read, write
from trace_mix import MIXES, Ask, Mix
from trace_points import mmpp, poisson
from trace_sessions import agents, humans

__all__ = ["MIXES", "TRACES", "Arrival", "Ask", "Mix", "agents", "humans", "mmpp", "poisson", "read", "write"]

TRACES: Mapping[str, Callable[..., list[Arrival]]] = MappingProxyType(
    {"poisson": poisson, "mmpp": mmpp, "agents": agents, "humans": humans}
)
"""By name: each takes seconds, rate (requests a second), seed and mix."""


def told(trace: Sequence[Arrival]) -> str:
    """A line on what a trace holds."""
    if not trace:
        return "no requests"
    by_size = ", ".join(f"{count} of {size}" for size, count in Counter(a.size for a in trace).most_common())
    samples, sessions = sum(a.num for a in trace), len({a.session for a in trace})
    return f"{len(trace)} requests, {samples} samples, {sessions} sessions, {trace[-1].at_s:.0f} s: {by_size}"


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("kind", choices=TRACES)
    args.add_argument("--seconds", type=float, default=600)
    args.add_argument("--rate", type=float, default=1.0, help="requests a second, on average")
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--mix", choices=MIXES, default="wan", help="what is asked for")
    args.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    options = args.parse_args()
    trace = TRACES[options.kind](options.seconds, options.rate, options.seed, MIXES[options.mix])
    write(trace, options.output)
    print(told(trace))
    return 0


if __name__ == "__main__":
    sys.exit(main())
