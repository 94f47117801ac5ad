"""The overlap benchmark's figures: what the rounds of one row at one rate come to, as a table and as metrics.

Ratios are taken round by round, then their median: what made a round slow made all of its arms slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

SYNCHRONOUS = "ours synchronous"
OVERLAPPED = "ours overlapped"
LANES = "ours two lanes"
SHARDED = "ours, schedule chosen"
"""Sharded by sequence, as when a forward does not fit otherwise; the schedule is chosen by cost."""
CHOSEN = "ours, all chosen"
"""Layout and schedule."""
DIFFUSERS, CACHE_DIT = "diffusers", "cache-dit"
WIRE_SLACK = 1.03
"""Of bytes sent to the formula's: headers of segments and acknowledgements. 1.002 was seen."""
WIRE_SLACK_BYTES = 20_000
"""The same for what hardly sends: two barriers."""


@dataclass(frozen=True)
class Figures:
    """One row at one rate.

    Args:
    arms: as `overlap_arms.Arm.describe` has them, in the table's order.
    seconds: by arm, the slowest rank's of each round.
    sent_bytes: by arm, the most that a rank sent, of each round.
    """

    row: str
    rate: str
    arms: Sequence[Mapping[str, Any]]
    seconds: Mapping[str, Sequence[float]]
    sent_bytes: Mapping[str, Sequence[int]]

    @property
    def title(self) -> str:
        return f"{self.row} at {self.rate}"

    def per_work(self, name: str) -> list[float]:
        """Seconds for one work of the row, in each round."""
        works = self._arm(name)["works"]
        return [seconds / works for seconds in self.seconds[name]]

    def floor(self, layout: str) -> list[float] | None:
        """Of each round, max(compute, communication); None for a layout of which neither was measured alone."""
        alone = self._alone(layout)
        return [max(of_round) for of_round in zip(*alone, strict=True)] if alone else None

    def least_floor(self, layout: str) -> float | None:
        """The same of the least times of all rounds: what it is without whatever else the machine did."""
        return max((min(times) for times in self._alone(layout)), default=None)

    def over_floor(self, name: str) -> float | None:
        floor = self.floor(self._arm(name)["layout"])
        return None if floor is None else _ratio(self.seconds[name], floor)

    def least_over_floor(self, name: str) -> float | None:
        """Of least times: what remains of the ratio where rounds are disturbed one by one."""
        floor = self.least_floor(self._arm(name)["layout"])
        return None if floor is None else min(self.seconds[name]) / floor

    def steps(self) -> list[str]:
        """The arms that do the whole work."""
        return [arm["name"] for arm in self.arms if arm["role"] == "step"]

    def best(self, works: int | None = None) -> str:
        """The arm with the least median time for one work.

        Args:
        works: only of those whose step does so many.
        """
        names = [name for name in self.steps() if works in (None, self._arm(name)["works"])]
        return min(names, key=lambda name: median(self.per_work(name)))

    def ratio(self, name: str, other: str) -> float:
        """How many times as long as the other's one work takes."""
        return _ratio(self.per_work(name), self.per_work(other))

    def wrong_bytes(self) -> list[str]:
        """What was sent that the formula does not know, or was not that it does."""
        found = []
        for arm in self.arms:
            expected, sent = arm["wire_bytes"], median(self.sent_bytes[arm["name"]])
            if expected is not None and not expected <= sent <= WIRE_SLACK * expected + WIRE_SLACK_BYTES:
                found.append(f"{self.title}: {arm['name']} sent {sent:.0f} bytes a rank, by its formula {expected}")
        return found

    def lines(self) -> list[str]:
        rounds = len(next(iter(self.seconds.values())))
        titles = ("min ms", "median", "ms/work", "min/flr", "of floor", "of best", "MB sent", "formula")
        lines = [f"{self.title}, {rounds} rounds"]
        lines.append(f"{'arm':26} {'layout':10} {' '.join(f'{title:>8}' for title in titles)}")
        best = self.best()
        for arm in self.arms:
            name, times = arm["name"], self.seconds[arm["name"]]
            is_step = arm["role"] == "step"
            cells = [
                f"{1000 * min(times):8.1f}",
                f"{1000 * median(times):8.1f}",
                f"{1000 * median(self.per_work(name)):8.1f}" if is_step else f"{'-':>8}",
                _cell(self.least_over_floor(name) if is_step else None),
                _cell(self.over_floor(name) if is_step else None),
                _cell(self.ratio(name, best) if is_step else None),
                f"{median(self.sent_bytes[name]) / 1e6:8.3f}",
                f"{'-':>8}" if arm["wire_bytes"] is None else f"{arm['wire_bytes'] / 1e6:8.3f}",
            ]
            lines.append(f"{name:26} {arm['layout']:10} {' '.join(cells)}")
        for layout in dict.fromkeys(arm["layout"] for arm in self.arms):
            least, floor = self.least_floor(layout), self.floor(layout)
            if least is not None and floor is not None:
                lines.append(f"floor of {layout}: {1000 * least:.1f} of least times, {1000 * median(floor):.1f} median")
        return lines

    def data(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "row": self.row,
            "rate": self.rate,
            "arms": [
                dict(arm) | {"seconds": list(self.seconds[arm["name"]]), "sent": list(self.sent_bytes[arm["name"]])}
                for arm in self.arms
            ],
        }

    def has(self, *names: str) -> bool:
        return all(name in self.seconds for name in names)

    def _alone(self, layout: str) -> list[Sequence[float]]:
        """A layout's compute and its communication, as far as they were measured; of several arms the fastest."""
        alone = []
        for role in ("compute", "communication"):
            names = [arm["name"] for arm in self.arms if arm["layout"] == layout and arm["role"] == role]
            if names:
                alone.append(self.seconds[min(names, key=lambda name: median(self.seconds[name]))])
        return alone

    def _arm(self, name: str) -> Mapping[str, Any]:
        return next(arm for arm in self.arms if arm["name"] == name)


def _ratio(times: Sequence[float], others: Sequence[float]) -> float:
    return median(time / other for time, other in zip(times, others, strict=True))


def _cell(ratio: float | None) -> str:
    return f"{'-':>8}" if ratio is None else f"{ratio:8.3f}"
