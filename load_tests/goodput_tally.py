"""What became of requests, counted: who was in time, and the metrics that follow. Pure but for the book's file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from goodput_mix import LOOSE, TIGHT
from report import metric

STARVED_S = 120.0
"""A request of the tier batch that took longer, from when it was due, has starved."""
HEADING = "load  arm    sent  <= 1.5x   <= 3x  refused failed     p50     p95  batch done  longest"


@dataclass(frozen=True)
class Served:
    """Args:
    status: "done", "refused" (429) or "failed".
    seconds: from when it was due.
    """

    size: str
    tier: str
    status: str
    seconds: float


@dataclass(frozen=True)
class Tally:
    """Of one arm at one load. Args: alone: seconds that each size takes the peer alone."""

    arm: str
    load: float
    served: Sequence[Served]
    alone: Mapping[str, float]

    @property
    def wanted(self) -> list[Served]:
        """Those with a target."""
        return [s for s in self.served if s.tier != "batch"]

    @property
    def batch(self) -> list[Served]:
        return [s for s in self.served if s.tier == "batch"]

    def in_time(self, scale: float) -> int:
        """What is refused or failed is not."""
        return sum(s.status == "done" and s.seconds <= scale * self.alone[s.size] for s in self.wanted)

    def attainment(self, scale: float) -> float:
        return self.in_time(scale) / len(self.wanted)

    @property
    def num_starved(self) -> int:
        return sum(s.status != "done" or s.seconds > STARVED_S for s in self.batch)

    def line(self) -> str:
        done = sorted(s.seconds for s in self.wanted if s.status == "done")
        p50, p95 = (done[min(int(q * len(done)), len(done) - 1)] if done else 0.0 for q in (0.5, 0.95))
        refused, failed = (sum(s.status == status for s in self.served) for status in ("refused", "failed"))
        batch = [s.seconds for s in self.batch if s.status == "done"]
        shares = " ".join(f"{100 * self.attainment(scale):7.1f}%" for scale in (TIGHT, LOOSE))
        return (
            f"{self.load:4.1f}  {self.arm:6} {len(self.wanted):4} {shares} {refused:8} {failed:6} {p50:7.2f} "
            f"{p95:7.2f} {len(batch):4} of {len(self.batch):2}  {max(batch, default=0.0):7.1f}"
        )


def merged(tallies: Iterable[Tally]) -> list[Tally]:
    """Those of all rounds together, by load and arm in the order in which they came."""
    found: dict[tuple[float, str], Tally] = {}
    for each in tallies:
        before = found.get((each.load, each.arm))
        served = [*([] if before is None else before.served), *each.served]
        found[each.load, each.arm] = Tally(each.arm, each.load, served, each.alone)
    return sorted(found.values(), key=lambda tally: tally.load)


def metrics(tallies: Iterable[Tally], load: float = 1.0) -> dict[str, dict[str, Any]]:
    """At one load, as far as it was measured."""
    at = {tally.arm: tally for tally in merged(tallies) if tally.load == load}
    if "ours" not in at:
        return {}
    own = at["ours"]
    found = {
        "attainment": metric(own.attainment(TIGHT), "share", ">= 0.6"),
        "attainment_3x": metric(own.attainment(LOOSE), "share", "-"),
        "starved_batch_requests": metric(own.num_starved, "", "0"),
    }
    for arm, name, goal in (("plain", "goodput_vs_plain_ray_serve", ">= 3"), ("sjf", "goodput_vs_sjf", "> 1")):
        if arm in at:
            share = at[arm].in_time(TIGHT) / len(at[arm].wanted)
            least = 1 / len(at[arm].wanted)  # where it had none in time, it is taken to have had one
            found[name] = metric(own.attainment(TIGHT) / max(share, least), "x", goal)
    return found


class Book:
    """What was measured, by name, in a file of JSON lines: a run that was cut short goes on from there."""

    def __init__(self, file: Path) -> None:
        self._file = file
        lines = file.read_text().splitlines() if file.exists() else []
        self._found: dict[str, Any] = dict(json.loads(line) for line in lines)

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def __getitem__(self, name: str) -> Any:
        return self._found[name]

    def put(self, name: str, value: Any) -> None:
        self._found[name] = value
        with self._file.open("a") as out:
            out.write(json.dumps([name, value]) + "\n")

    def put_served(self, name: str, served: Sequence[Served]) -> None:
        self.put(name, [asdict(each) for each in served])

    def served(self, name: str) -> list[Served]:
        return [Served(**values) for values in self._found[name]]
