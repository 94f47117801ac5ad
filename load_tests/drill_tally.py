"""What became of the jobs of a drill: one row each, and what is wrong with it. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Steps = Sequence[tuple[float, int]]


@dataclass(frozen=True)
class Seen:
    """One accepted job, as its client saw it.

    Args:
        status: its last; `lost` for one that never ended.
        attempt: how often a dispatcher began it.
        lost_replicas, recomputed: as the server tells (`why`).
        steps: seconds and step of every progress event.
        off: levels by which the worst pixel is off; None where nothing was to be compared.
        extra_files: beside what an undisturbed one leaves.
    """

    id: str
    status: str
    attempt: int = 1
    lost_replicas: int = 0
    recomputed: int = 0
    steps: Steps = ()
    off: int | None = None
    extra_files: Sequence[str] = ()
    error: str = ""

    @property
    def is_resumed(self) -> bool:
        return self.lost_replicas > 0 or self.attempt > 1


@dataclass(frozen=True)
class Row:
    """Args:
    equal: of those that were compared, within what is let pass.
    levels_off: of 255, of the worst pixel.
    first_step_s: from the fault to a disturbed job's first new step: of the quickest, and of the slowest.
    """

    drill: str
    sent: int
    done: int
    resumed: int
    recomputed: int
    failed: int
    lost: int
    duplicated: int
    equal: int
    compared: int
    levels_off: int
    first_step_s: tuple[float, float] | None
    note: str = ""

    @property
    def is_good(self) -> bool:
        return self.sent > 0 and not (self.failed or self.lost or self.duplicated) and self.equal == self.compared


def row_of(drill: str, seen: Sequence[Seen], extra_jobs: int, fault_at: float, note: str = "", exact: int = 0) -> Row:
    """Args:
    extra_jobs: that the server has and no client was given.
    fault_at: in the seconds of `steps`.
    exact: levels that pixels may be off.
    """
    done = [s for s in seen if s.status == "completed"]
    failed = [s for s in seen if s.status in ("failed", "cancelled")]
    compared = [s.off for s in done if s.off is not None]
    disturbed = [s for s in seen if s.is_resumed] or [s for s in seen if _is_under_way(s.steps, fault_at)]
    waited = [w for s in disturbed if (w := first_new_step_s(s.steps, fault_at)) is not None]
    if left := sum(is_state(name) for s in done for name in s.extra_files):
        note = f"{note}; {left} states left in the store".removeprefix("; ")
    return Row(
        drill=drill,
        sent=len(seen),
        done=len(done),
        resumed=sum(s.is_resumed for s in seen),
        recomputed=sum(max(s.recomputed, repeated(s.steps)) for s in seen),
        failed=len(failed),
        lost=len(seen) - len(done) - len(failed),
        duplicated=extra_jobs + sum(not is_state(name) for s in done for name in s.extra_files),
        equal=sum(off <= exact for off in compared),
        compared=len(compared),
        levels_off=max(compared, default=0),
        first_step_s=(min(waited), max(waited)) if waited else None,
        note=note,
    )


def is_state(name: str) -> bool:
    """Whether a file of a job is a state that was kept for the case of its dispatcher's death, and no result."""
    return name.startswith("states/")


def repeated(steps: Steps) -> int:
    """How many steps a client saw a second time."""
    count, last = 0, 0
    for _, step in steps:
        if step <= last:
            count += last - step + 1
        last = step
    return count


def first_new_step_s(steps: Steps, fault_at: float) -> float | None:
    """Seconds from a fault to the end of the longest pause that ends after it; None where nothing came after it."""
    later = [i for i, (at, _) in enumerate(steps) if at > fault_at]
    if not later:
        return None
    times = [at for at, _ in steps]
    longest = max(later, key=lambda i: times[i] - (times[i - 1] if i else fault_at))
    return times[longest] - fault_at


def longest_pause_s(steps: Steps) -> float:
    """Between two steps; 0 where there are none."""
    return max((later - at for (at, _), (later, _) in itertools.pairwise(steps)), default=0.0)


def _is_under_way(steps: Steps, at: float) -> bool:
    return bool(steps) and steps[0][0] <= at <= steps[-1][0]


COLUMNS = (
    ("drill", 22),
    ("sent", 5),
    ("done", 5),
    ("resumed", 8),
    ("recomputed", 11),
    ("failed", 7),
    ("lost", 5),
    ("duplicated", 11),
    ("pixels equal", 13),
    ("off", 4),
    ("first new step s", 17),
)


def header() -> str:
    return "".join(f"{name:<{width}}" if name == "drill" else f"{name:>{width}}" for name, width in COLUMNS)


def line(row: Row) -> str:
    first = "-" if row.first_step_s is None else "{:.1f}-{:.1f}".format(*row.first_step_s)
    values: list[Any] = [row.drill, row.sent, row.done, row.resumed, row.recomputed, row.failed, row.lost]
    values += [row.duplicated, f"{row.equal}/{row.compared}", row.levels_off, first]
    cells = [
        f"{v:<{w}}" if i == 0 else f"{v!s:>{w}}" for i, (v, (_, w)) in enumerate(zip(values, COLUMNS, strict=True))
    ]
    return "".join(cells) + (f"  {row.note}" if row.note else "") + ("" if row.is_good else "  <-- NOT GOOD")
