"""How a layout's exchanges are hidden under what is computed: one of a few ways, by name."""

from __future__ import annotations

from dataclasses import dataclass

from raydiance.parallel.mesh import Layout


@dataclass(frozen=True, slots=True)
class Schedule:
    """Args:
    early: v, k and q leave as soon as each is projected, instead of all at once.
    head_groups: in how many parts each rank's heads are exchanged and attended to.
    lanes: two independent forwards, of a guidance pair or of two batches, are interleaved on the same ranks.
    parts: in how many lanes of one forward each rank's tokens are: what one part exchanges hides under the feed-forward
        and the projections of the others. More than one only where the sequence is sharded by Ulysses alone.
    """

    early: bool = False
    head_groups: int = 1
    lanes: bool = False
    parts: int = 1

    def __post_init__(self) -> None:
        for name in ("head_groups", "parts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if self.lanes and self.parts > 1:
            raise ValueError("lanes are either two forwards or parts of one")

    def fits(self, layout: Layout) -> bool:
        """Whether it means anything to a layout."""
        if layout.sequence == 1:
            return self == SCHEDULES["synchronous"]
        if layout.ulysses == 1:
            return not self.early and self.head_groups == 1 and self.parts == 1
        return self.parts == 1 or layout.ring == 1


SCHEDULES = {
    "synchronous": Schedule(),
    "projections": Schedule(early=True),
    "head_groups": Schedule(early=True, head_groups=2),
    "lanes": Schedule(lanes=True),
    "halves": Schedule(parts=2, early=True),
    "quarters": Schedule(parts=4, early=True),
}


def name_of(schedule: Schedule) -> str:
    """In `SCHEDULES`. Raises ValueError for one that is not there."""
    for name, known in SCHEDULES.items():
        if known == schedule:
            return name
    raise ValueError(f"{schedule} has no name")
