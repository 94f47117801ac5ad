"""What does it cost to shard a denoising step over ranks on a slow link, and what does overlap win back?

    sudo python load_tests/bench_overlap.py [--quick] [--json FILE] [--ranks 2|4] [--rows wan-free flux]

Makes its own network namespaces with shaped links, and runs peers and ours in turn on the same weights. Rows: two
layers of Wan without guidance, with a guidance pair, for two requests; three blocks of FLUX. fp32, a thread a rank.
Nothing is reported unless every arm's outputs equal those of the whole forward in one process. Needs root, ip and tc.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from overlap_goals import metrics
from overlap_net import UNSHAPED, Network, NoNamespaces, check_rate
from overlap_table import Figures
from overlap_world import SHARED, RankFailed, World
from report import parser, publish

ROWS = ("wan-free", "wan-pair", "wan-two", "flux")
RATES = ("200mbit", "1gbit")
QUICK_ROWS, QUICK_RATES = ("wan-free",), ("200mbit",)
ROUNDS = 20
MAX_ERROR = 1e-4
FIRST_PORT = 29400


class WrongOutputs(RuntimeError):
    """An arm does not compute what the whole forward does."""


class NoPeer(RuntimeError):
    """A peer is not installed."""


class Bench:
    def __init__(
        self, network: Network, worlds: contextlib.ExitStack, rows: Sequence[str], rates: Sequence[str]
    ) -> None:
        self._network, self._open = network, worlds
        self._rows, self._rates = rows, rates
        self._worlds: dict[str, World] = {}
        self._arms: dict[str, list[dict[str, Any]]] = {}
        self._seconds: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._sent: dict[tuple[str, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.versions: dict[str, str] = {}

    def prepare(self) -> None:
        for row in self._rows:
            answer = self._world(SHARED).ask(do="row", row=row)[0]
            self._arms[row], self.versions = answer["arms"], answer["versions"]
            for process in {arm["process"] for arm in self._arms[row]} - {SHARED}:
                self._world(process).ask(do="row", row=row)

    def _world(self, process: str) -> World:
        if process not in self._worlds:
            port = FIRST_PORT + len(self._worlds)
            self._worlds[process] = self._open.enter_context(World(self._network, port))
        return self._worlds[process]

    def round(self, seed: int, keep: bool) -> None:
        """Each arm of each row at each rate once, in an order of the seed's. Raises WrongOutputs."""
        order = random.Random(seed)  # noqa: S311
        for rate in order.sample(self._rates, len(self._rates)):
            self._network.shape(rate)
            for row in order.sample(self._rows, len(self._rows)):
                for arm in order.sample(self._arms[row], len(self._arms[row])):
                    self._step(row, rate, arm, keep)

    def figures(self) -> list[Figures]:
        return [
            Figures(row, rate, self._arms[row], self._seconds[row, rate], self._sent[row, rate])
            for row in self._rows
            for rate in self._rates
        ]

    def _step(self, row: str, rate: str, arm: dict[str, Any], keep: bool) -> None:
        name = arm["name"]
        answers = self._world(arm["process"]).ask(do="step", row=row, rate=rate, arm=name)
        for of_output in zip(*(answer["errors"] for answer in answers), strict=True):
            errors = [error for error in of_output if error is not None]
            if not errors or not all(error <= MAX_ERROR for error in errors):  # NaN is wrong as well
                raise WrongOutputs(
                    f"{row} at {rate}: {name} is {errors} off the whole forward, by rank; at most {MAX_ERROR}"
                )
        if keep:
            self._seconds[row, rate][name].append(max(answer["seconds"] for answer in answers))
            self._sent[row, rate][name].append(max(answer["sent_bytes"] for answer in answers))


def check_peers() -> None:
    """Raises NoPeer."""
    if missing := [name for name in ("cache_dit", "einops") if importlib.util.find_spec(name) is None]:
        raise NoPeer(f"{' and '.join(missing)} not found: pip install -e '.[bench]'")


def main() -> int:
    args = parser(__doc__)
    args.add_argument("--ranks", type=int, choices=(2, 4), default=2)
    args.add_argument("--rows", nargs="+", choices=ROWS, metavar="ROW", help=f"{', '.join(ROWS)}; all by default")
    args.add_argument("--rates", nargs="+", type=check_rate, metavar="RATE", help=f"{', '.join(RATES)}, or {UNSHAPED}")
    args.add_argument("--rounds", type=int, default=ROUNDS)
    options = args.parse_args()
    rounds = 1 if options.quick else options.rounds
    rows = options.rows or (QUICK_ROWS if options.quick else ROWS)
    rates = options.rates or (QUICK_RATES if options.quick else RATES)
    started = time.monotonic()
    try:
        check_peers()
        with Network(options.ranks) as network, contextlib.ExitStack() as worlds:
            bench = Bench(network, worlds, rows, rates)
            bench.prepare()
            for index in range(rounds + 1):  # the first one sets up and warms up
                bench.round(seed=index, keep=index > 0)
                print(f"round {index} of {rounds}, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
            measured = bench.figures()
    except (NoPeer, NoNamespaces, WrongOutputs, RankFailed) as error:
        print(f"not reported: {error}", file=sys.stderr)
        return 1
    versions = ", ".join(f"{name} {version}" for name, version in bench.versions.items())
    print(f"{options.ranks} ranks on {os.cpu_count()} cores, {versions}")
    for figures in measured:
        print("\n" + "\n".join(figures.lines()), flush=True)
    print()
    publish(metrics(measured), options.json)
    if options.json is not None:
        add_rows(options.json, bench.versions, measured)
    wrong_bytes = [line for figures in measured for line in figures.wrong_bytes()]
    for line in wrong_bytes:
        print(line, file=sys.stderr)
    return 1 if wrong_bytes else 0


def add_rows(file: Path, versions: dict[str, str], measured: Sequence[Figures]) -> None:
    """Beside the metrics, every time that was taken."""
    data = json.loads(file.read_text())
    data["versions"] |= versions
    data["rows"] = [figures.data() for figures in measured]
    file.write_text(json.dumps(data, indent=1))


if __name__ == "__main__":
    sys.exit(main())
