"""Whether a server that has been through much grows: what its processes take, and what Ray holds for them."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from drill_processes import memory_bytes, open_files
from drill_world import REPLICA, World

SHARE = 0.05
SLACK = {"memory_mb": 64.0, "processes": 0.0, "open_files": 16.0, "placement_groups": 0.0, "object_store_mb": 16.0}
"""By which the end may lie above the beginning, beside `SHARE` of it."""


@dataclass(frozen=True)
class Sample:
    """Of all processes of the cluster together; `memory_mb` is what each shares with no other."""

    at_s: float
    memory_mb: float
    processes: int
    open_files: int
    placement_groups: int
    object_store_mb: float


def sample(world: World, began: float) -> Sample:
    processes, left = world.processes(), world.ask("left")
    return Sample(
        round(time.monotonic() - began, 1),
        round(sum(memory_bytes(p.pid) for p in processes) / 2**20, 1),
        sum(p.is_a(REPLICA) or p.is_a("ray::RankActor") for p in processes),
        sum(open_files(p.pid) for p in processes),
        left["placement_groups"],
        object_store_mb(world, left["address"]),
    )


def object_store_mb(world: World, address: str) -> float:
    """As `ray memory` says. Raises RuntimeError."""
    ray = Path(sys.executable).parent / "ray"
    command = [str(ray), "memory", "--stats-only", "--address", address]
    said = subprocess.run(command, capture_output=True, text=True, env=world.environment, timeout=120, check=False)
    found = re.search(r"Plasma memory usage (\d+) MiB", said.stdout)
    if found is None:
        raise RuntimeError(f"ray memory says nothing of the object store: {said.stdout[-200:]} {said.stderr[-300:]}")
    return float(found[1])


def watched(world: World, minutes: float, most: int = 40) -> list[Sample]:
    """Samples of so many minutes, evenly spread."""
    began, found = time.monotonic(), []
    while time.monotonic() - began < 60 * minutes:
        found.append(sample(world, began))
        print(f"    {found[-1]}", flush=True)
        time.sleep(60 * minutes / most)
    return found


def growth(samples: Sequence[Sample]) -> dict[str, tuple[float, float]]:
    """Means of the second fifth and of the last: caches fill in the first. Raises ValueError for fewer than five."""
    if len(samples) < 5:
        raise ValueError(f"{len(samples)} samples say nothing")
    fifth = len(samples) // 5
    first, last = [asdict(s) for s in samples[fifth : 2 * fifth]], [asdict(s) for s in samples[-fifth:]]
    return {name: (fmean(s[name] for s in first), fmean(s[name] for s in last)) for name in SLACK}


def grown(found: dict[str, tuple[float, float]]) -> list[str]:
    return [name for name, (first, last) in found.items() if last > first * (1 + SHARE) + SLACK[name]]
