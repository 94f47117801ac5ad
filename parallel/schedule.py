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
    halves: each rank's tokens are two lanes of one forward: what one half exchanges hides under the feed-forward and
        the projections of the other. Only where the sequence is sharded by Ulysses alone.
    """

    early: bool = False
    head_groups: int = 1
    lanes: bool = False
    halves: bool = False

    def __post_init__(self) -> None:
        if self.head_groups < 1:
            raise ValueError(f"head_groups must be 1 or more, not {self.head_groups}")
        if self.lanes and self.halves:
            raise ValueError("lanes are either two forwards or two halves of one")

    def fits(self, layout: Layout) -> bool:
        """Whether it means anything to a layout."""
        if layout.sequence == 1:
            return self == SCHEDULES["synchronous"]
        if layout.ulysses == 1:
            return not self.early and self.head_groups == 1 and not self.halves
        return not self.halves or layout.ring == 1


SCHEDULES = {
    "synchronous": Schedule(),
    "projections": Schedule(early=True),
    "head_groups": Schedule(early=True, head_groups=2),
    "lanes": Schedule(lanes=True),
    "halves": Schedule(halves=True, early=True),
}


def name_of(schedule: Schedule) -> str:
    """In `SCHEDULES`. Raises ValueError for one that is not there."""
    for name, known in SCHEDULES.items():
        if known == schedule:
            return name
    raise ValueError(f"{schedule} has no name")
