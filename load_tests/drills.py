"""Kills what serves, under load, and counts what becomes of the jobs that were accepted: nothing may be lost.

    python load_tests/drills.py                         every drill, one after the other
    python load_tests/drills.py --only node dispatcher
    python load_tests/drills.py --random --faults 50 --minutes 20 --after-minutes 10

Each on a real Ray cluster of several nodes on this machine, with PostgreSQL and an S3 server on loopback. Exit status 1
if a job failed, was lost or has other pixels than when nothing disturbs it, or if there is an artifact too many.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from drill_faults import FAULTS, Fault, Home
from drill_growth import grown, growth
from drill_load import Ask, Load, Pixels, stray_jobs, undisturbed
from drill_random import at_capacity, randomized
from drill_tally import Row, header, line, row_of
from drill_world import Shape, World
from report import machine

SHAPES: dict[Home, Shape] = {
    "nodes": Shape(),
    "ranks": Shape(ranks=2),
    "disk": Shape(nodes=0),
}
EXACT: dict[Home, int] = {"nodes": 0, "ranks": 1, "disk": 0}
"""Levels that pixels may be off: over several ranks sums are made in another order."""
SHORT = [Ask(1, 80, 96), Ask(2, 100, 96), Ask(3, 60, 64, 9), Ask(4, 90, 96)]
LONG_S = 30.0
"""That a generation takes at least where it is to be longer than the 20 s of grace that Serve gives a replica."""
SETTLE_S = 6.0


def drill(name: str, world: World, expected: dict[Ask, Pixels], chance: random.Random, clients: int) -> Row:
    """One fault in mid-generation; returns when every accepted job has ended or is lost, and all is well again."""
    fault, home = FAULTS[name], FAULTS[name].home
    asks = long_asks(world.url) if fault.is_long else SHORT
    for ask in [ask for ask in asks if ask not in expected]:
        expected |= undisturbed(world.url, [ask])
    clients = min(clients, 2) if fault.is_long else clients
    load = Load(world.url, name, asks, expected, world.artifacts.files, clients=clients).start()
    load.wait_midway(1 if fault.is_long or fault.at[0] > 0.7 else min(clients, 2), *fault.at)
    fault_at = time.monotonic()
    try:
        note = fault.inject(world, chance)
        time.sleep(SETTLE_S)
    finally:
        seen = load.finish()
    well_s = world.wait_well()
    note = f"{note}; well {time.monotonic() - fault_at:.0f} s after" if well_s > 1 else note
    for s in seen:
        if s.error or s.extra_files:
            print(f"    {s.id} {s.status} attempt {s.attempt}: {s.error} {list(s.extra_files) or ''}", flush=True)
    extra = stray_jobs(world.url, load.drill, [s.id for s in seen])
    return row_of(name, seen, extra, fault_at, note.removeprefix("; "), EXACT[home])


def long_asks(url: str) -> list[Ask]:
    """Of as many pixels as this machine needs for it."""
    steps, side = 20, 192
    began = time.monotonic()
    undisturbed(url, [Ask(0, steps, side)])
    step_s = (time.monotonic() - began) / steps
    side = max(round(side * math.sqrt(LONG_S / 200 / step_s) / 32), 2) * 32
    return [Ask(5, 200, side)]


@contextmanager
def open_world(home: Home, folder: Path) -> Iterator[World]:
    world = World(folder, SHAPES[home])
    try:
        yield world.start()
    finally:
        world.close()


def run(names: Sequence[str], seed: int, folder: Path, clients: int) -> Iterator[Row]:
    homes = list(dict.fromkeys(FAULTS[name].home for name in names))
    for home in homes:
        expected: dict[Ask, Pixels] = {}
        left = [name for name in names if FAULTS[name].home == home]
        while left:  # what a drill leaves unwell is not handed on to the next
            with open_world(home, folder / f"{home}-{len(left)}") as world:
                while left:
                    name = left.pop(0)
                    try:
                        yield drill(name, world, expected, random.Random(f"{seed} {name}"), clients)  # noqa: S311
                    except (RuntimeError, AssertionError) as e:
                        print(f"{name}: {e}", file=sys.stderr, flush=True)
                        yield Row(name, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, None, f"{e}"[:300])
                        break


def listed(faults: dict[str, Fault]) -> str:
    return "\n".join(f"{name:<18} {fault.what}" for name, fault in faults.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(FAULTS), metavar="NAME", help="these drills")
    parser.add_argument("--random", action="store_true", help="faults by chance instead, then the load without them")
    parser.add_argument("--faults", type=int, default=50, help="of --random")
    parser.add_argument("--minutes", type=float, default=20.0, help="over which --random spreads them")
    parser.add_argument("--after-minutes", type=float, default=10.0, help="at capacity after --random")
    parser.add_argument("--list", action="store_true", help="the names of all, and what they do")
    parser.add_argument("--seed", type=int, default=0, help="of what is chosen by chance")
    parser.add_argument("--clients", type=int, default=4, help="that ask at once; 1 for the bare time of a recovery")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="of databases and logs; else it is removed")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the cluster is not left behind
    if args.list:
        print(listed(dict(FAULTS)))
        return 0
    print(header(), flush=True)
    rows, after = [], {}
    with tempfile.TemporaryDirectory(prefix="drills-", dir="/tmp") as made:
        Path(made).chmod(0o755)  # PostgreSQL runs as another user
        folder = args.keep or Path(made)
        if args.random:
            with open_world("nodes", folder / "random") as world:
                expected = undisturbed(world.url, SHORT)
                rows.append(randomized(world, SHORT, expected, args.seed, args.faults, args.minutes, EXACT["nodes"]))
                print(line(rows[0]), flush=True)
                after = growth(at_capacity(world, SHORT, args.after_minutes)) if args.after_minutes else {}
        for row in () if args.random else run(args.only or list(FAULTS), args.seed, folder, args.clients):
            rows.append(row)
            print(line(row), flush=True)
    for name, (first, last) in after.items():
        print(f"{name:<22}{first:>12.1f}{last:>12.1f}" + ("  <-- GROWN" if name in grown(after) else ""))
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(
            json.dumps({"rows": [asdict(r) for r in rows], "after": after, "machine": machine()}, indent=1)
        )
    return 0 if all(row.is_good for row in rows) and not grown(after) else 1


if __name__ == "__main__":
    sys.exit(main())
