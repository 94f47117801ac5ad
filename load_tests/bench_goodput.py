"""How many requests are done in time, under bursts of agents? Ours beside a plain Ray Serve deployment of diffusers.

    python load_tests/bench_goodput.py [--quick] [--json FILE] [--arms plain ours fifo sjf] [--loads 0.7 1.0 1.5]
        [--minutes 1.5] [--rounds 2] [--results FOLDER]

Open loop: images and videos arrive in bursts that were drawn beforehand, at a load relative to what the plain
deployment saturates at with its best replicas and threads, whatever becomes of earlier ones. A request is in time where
it is done within 1.5 times (and 3 times) what its size takes the plain deployment alone, from when it was due; what is
refused or fails is not. In every round each arm is started, takes all loads and is stopped, one after the other, on the
same cores. Nothing is reported unless ours makes the pixels of diffusers. What is in the folder of `--results` is not
measured again: a run that was cut short goes on, and arms, loads and rounds can be measured one by one.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from goodput_arms import Arm, ours, plain
from goodput_mix import MIX, OFF, balanced, kinds, mean_s, quick_mix, trace_of
from goodput_run import closed_loop, files, isolated, problem_of, replay
from goodput_tally import HEADING, Book, Tally, merged, metrics
from report import metric, parser, publish
from traces import Arrival, Mix

ARMS = ("plain", "ours", "fifo", "sjf")
POLICIES = {"ours": "slack", "fifo": "fifo", "sjf": "sjf"}
WAYS = ((2, 1), (1, 2))
"""Replicas and threads that the plain deployment is tried with."""
CLIENTS = (1, 2, 4, 8, 16)
SATURATING = 4
SMALL = 8
QUICK_OFF = 0.5
"""A trace of some seconds has some load."""
UNORDERED = {"scheduling.admission": False, "scheduling.lead_s": 1e6, "scheduling.lease_s": 1e6}
"""For the policies that ours is compared with: everything is handed to the replica at once, and they alone decide."""


@dataclass(frozen=True)
class Bench:
    """Args: folder: of the book, and of what the plain deployment made."""

    mix: Mix
    seconds: float
    rounds: int
    loads: Sequence[float]
    arms: Sequence[str]
    has_concurrency: bool
    is_quick: bool
    folder: Path
    book: Book

    def run(self) -> str | None:
        """What is wrong with the pixels; None where nothing is."""
        if "way" not in self.book:
            self._quick_way() if self.is_quick else self._best_way()
        for round_ in range(self.rounds):
            for arm in self.arms:
                if (problem := self._arm(arm, round_)) is not None:
                    return problem
        return None

    def _quick_way(self) -> None:
        self.book.put("way", [*WAYS[0], 0.0])

    def _best_way(self) -> None:
        """Replicas and threads with the most requests a second."""
        found = []
        for replicas, threads in WAYS:
            with plain(replicas, threads) as arm:
                _of(closed_loop(arm, kinds(self.mix), 2))  # warm
                rate, _ = _of(closed_loop(arm, balanced(self.mix, 24), SATURATING))
            found.append((rate, replicas, threads))
            say(f"plain, {replicas} replicas of {threads} threads: {rate:.2f} requests/s at saturation")
        rate, replicas, threads = max(found)
        self.book.put("way", [replicas, threads, rate])

    @property
    def rate(self) -> float:
        """Requests a second at saturation; in a quick run what follows from what they take alone."""
        replicas, _, rate = self.book["way"]
        return float(rate or replicas / mean_s(self.mix, self.book["alone/plain"]))

    def _arm(self, name: str, round_: int) -> str | None:
        cells = [load for load in self.loads if self._cell(name, load, round_) not in self.book]
        more = [job for key, job in self._once(name) if key not in self.book]
        if not cells and not more:
            return None
        with self._started(name) as arm:
            for job in more:
                if (problem := job(arm)) is not None:
                    return problem
            for load in cells:
                alone = self.book["alone/plain"]
                off = QUICK_OFF if self.is_quick else OFF
                trace = trace_of(self.mix, self.seconds, load, self.rate, alone, round_, off)
                self.book.put_served(self._cell(name, load, round_), _of(replay(arm, trace, alone)))
                say(HEADING + "\n" + self._tally(name, load, round_).line())
        return None

    def _cell(self, arm: str, load: float, round_: int) -> str:
        return f"{arm} at {load:g}, {self.seconds:g} s, round {round_}"

    def _tally(self, arm: str, load: float, round_: int) -> Tally:
        return Tally(arm, load, self.book.served(self._cell(arm, load, round_)), self.book["alone/plain"])

    def _started(self, name: str) -> AbstractContextManager[Arm]:
        replicas, threads, _ = self.book["way"]
        if name == "plain":
            return plain(replicas, threads)
        same = {"denoiser.num_replicas": replicas, "denoiser.num_threads": threads}
        return ours(POLICIES[name], same | ({} if name == "ours" else UNORDERED))

    def _once(self, name: str) -> Iterator[tuple[str, Callable[[Arm], str | None]]]:
        """What an arm does before its first trace, and the name of what comes of it."""
        yield f"alone/{name}", self._alone
        if name in ("plain", "ours") and self.has_concurrency:
            yield f"clients/{name}", self._clients
        if name == "ours" and not self.is_quick:
            yield "batched", self._batched

    def _alone(self, arm: Arm) -> str | None:
        """First, on an idle system; with the check of what is made."""
        these = kinds(self.mix)
        made = _of(files(arm, these))
        for one in these:
            place = self.folder / f"{one.size}.of-plain"
            if arm.name == "plain":
                place.write_bytes(made[one.size])
        if arm.name != "plain":
            theirs = {one.size: (self.folder / f"{one.size}.of-plain").read_bytes() for one in these}
            if (problem := problem_of(these, made, theirs)) is not None:
                return problem
        found = _of(isolated(arm, these, 1 if self.is_quick else 3))
        self.book.put(f"alone/{arm.name}", found)
        say(f"alone, {arm.name} takes " + ", ".join(f"{size}: {s:.2f} s" for size, s in found.items()))
        return None

    def _clients(self, arm: Arm) -> None:
        found = [[num, *_of(closed_loop(arm, balanced(self.mix, max(6, 2 * num)), num))] for num in CLIENTS]
        self.book.put(f"clients/{arm.name}", found)

    def _batched(self, arm: Arm) -> None:
        """Small images a second, one by one and all at once."""
        small: list[Arrival] = [kinds(self.mix)[0]] * SMALL
        self.book.put("batched", [_of(closed_loop(arm, small, num))[0] for num in (1, SMALL)])

    def tallies(self) -> list[Tally]:
        """Of what was asked for, as far as it was measured."""
        return [
            self._tally(arm, load, round_)
            for arm in self.arms
            for load in self.loads
            for round_ in range(self.rounds)
            if self._cell(arm, load, round_) in self.book
        ]

    def report(self) -> dict[str, dict[str, Any]]:
        replicas, threads, _ = self.book["way"]
        for arm in ARMS:
            if f"alone/{arm}" in self.book:
                sizes = ", ".join(f"{size} {s:.2f} s" for size, s in self.book[f"alone/{arm}"].items())
                print(f"alone, {arm:6} {sizes}")
        print(f"load 1.0 is {self.rate:.2f} requests/s, of {replicas} replicas of {threads} threads each")
        print(f"{self.rounds} rounds of {self.seconds:g} s at each load\n{HEADING}")
        for tally in merged(self.tallies()):
            print(tally.line())
        for arm in ("plain", "ours"):
            if f"clients/{arm}" in self.book:
                cells = [f"{num}: {rate:.2f}/s {median:.2f} s" for num, rate, median in self.book[f"clients/{arm}"]]
                print(f"clients, requests/s and median latency, {arm:6} {'; '.join(cells)}")
        found = metrics(self.tallies())
        if "batched" in self.book:
            single, batched = self.book["batched"]
            print(f"{SMALL} small images: {single:.2f}/s one by one, {batched:.2f}/s at once")
            found["small_images_at_once"] = metric(batched / single, "x", "-")
        return found


def _of(work: Any) -> Any:
    return asyncio.run(work)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def _options() -> argparse.Namespace:
    args = parser(__doc__)
    args.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    args.add_argument("--loads", type=float, nargs="+", default=[0.7, 1.0, 1.5])
    args.add_argument("--minutes", type=float, default=1.5, help="of each trace")
    args.add_argument("--rounds", type=int, default=2, help="of all arms, each with traces of its own")
    args.add_argument("--results", type=Path, metavar="FOLDER", help="keep and reuse what is measured there")
    args.add_argument("--no-concurrency", action="store_true", help="leave out latency over concurrency")
    return args.parse_args()


def main() -> int:
    options = _options()
    quick = options.quick
    with _folder(options.results) as folder:
        bench = Bench(
            mix=quick_mix() if quick else MIX,
            seconds=4.0 if quick else 60 * options.minutes,
            rounds=1 if quick else options.rounds,
            loads=[1.0] if quick else options.loads,
            arms=["plain", "ours"] if quick else sorted({"plain", *options.arms}, key=ARMS.index),
            has_concurrency=not (quick or options.no_concurrency),
            is_quick=quick,
            folder=folder,
            book=Book(folder / ("quick.jsonl" if quick else "goodput.jsonl")),
        )
        if (problem := bench.run()) is not None:
            say(f"not reported: {problem}")
            return 1
        publish(bench.report(), options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
