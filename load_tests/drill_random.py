"""Many faults by chance, under one load, and then the same load undisturbed."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from drill_faults import FAULTS, picked
from drill_growth import Sample, watched
from drill_load import Ask, Load, Pixels, stray_jobs
from drill_tally import Row, longest_pause_s, row_of
from drill_world import World

TRIES = 20


def randomized(
    world: World, asks: Sequence[Ask], expected: Mapping[Ask, Pixels], seed: int, count: int, minutes: float, exact: int
) -> Row:
    """One row of all faults together. Its first new step: of jobs that were resumed, the longest pause of each, in the
    median and at most."""
    load = Load(world.url, "random", asks, expected, world.artifacts.files, give_up_s=60 * minutes + 600).start()
    began, done = time.monotonic(), []
    try:
        load.wait_midway()
        for i, name in enumerate(picked(seed, count)):
            time.sleep(max(began + i * 60 * minutes / count - time.monotonic(), 0.0))
            note = _inject(world, name, random.Random(f"{seed} {i}"))  # noqa: S311 - to be had again
            done.append(name)
            at_s = time.monotonic() - began
            print(f"    {at_s:6.0f} s  {i + 1:>3} {name} {note}  ({len(load.seen)} done)", flush=True)
        time.sleep(max(began + 60 * minutes - time.monotonic(), 0.0))
    finally:
        seen = load.finish()
    took_s = time.monotonic() - began
    world.wait_well()
    for s in seen:
        if s.error or s.extra_files:
            print(f"    {s.id} {s.status} attempt {s.attempt}: {s.error} {list(s.extra_files) or ''}", flush=True)
    extra = stray_jobs(world.url, load.drill, [s.id for s in seen])
    pauses = [longest_pause_s(s.steps) for s in seen if s.is_resumed]
    row = row_of(f"random, seed {seed}", seen, extra, began, f"{len(done)} faults in {took_s / 60:.1f} min", exact)
    return replace(row, first_step_s=(median(pauses), max(pauses)) if pauses else None)


def _inject(world: World, name: str, chance: random.Random) -> str:
    """What is to be hit may be away just now, by the fault before: it is waited for."""
    for _ in range(TRIES):
        try:
            return FAULTS[name].inject(world, chance)
        except RuntimeError as e:
            print(f"    {name} is tried again: {e}", file=sys.stderr, flush=True)
            time.sleep(3)
    raise RuntimeError(f"{name} could not be injected {TRIES} times")


def at_capacity(world: World, asks: Sequence[Ask], minutes: float) -> list[Sample]:
    """More clients than can be served at once, and nothing disturbs them."""
    load = Load(world.url, "capacity", asks, {}, world.artifacts.files, clients=8).start()
    try:
        return watched(world, minutes)
    finally:
        load.finish()
