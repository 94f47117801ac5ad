"""What the ranks of a world do with the requests of `family_subjects`: in which layouts, by which schedules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.parallel.family_subjects import PAIRS, SUBJECTS, TWINS, WANDERERS, Subject

from raydiance.parallel.mesh import Layout, Mesh, Subgroup
from raydiance.parallel.schedule import SCHEDULES, Schedule

LAYOUTS = {
    2: (Layout(ulysses=2), Layout(ring=2), Layout(cfg=2)),
    4: (Layout(ring=2, ulysses=2), Layout(cfg=2, ulysses=2)),
}
"""By number of ranks, each of a world."""
MORE = (Layout(ulysses=4), Layout(ring=4), Layout(cfg=2, ring=2))
"""Of four ranks, for a request a family: guided, with tokens and heads that do not divide."""
NUM_FORWARDS = {"wan": (2, 2), "flux": (2, 2), "hidream": (1, 2), "ltx": (3, 4), "ltx-2.0": (2, 3)}
"""By family, or by model. Of a guided step, where one is under way at a time, and where several are."""


@dataclass(frozen=True)
class Way:
    """Args:
    name: of the schedule.
    start: the first rank.
    """

    layout: Layout
    name: str = "synchronous"
    start: int = 0

    @property
    def mesh(self) -> Mesh:
        return Mesh(Subgroup(self.start, self.layout.size), self.layout)

    @property
    def schedule(self) -> Schedule:
        return SCHEDULES[self.name]

    @property
    def id(self) -> str:
        return f"{slug(self.layout)}-{self.name}"

    def num_calls(self, batch: Sequence[Subject], rank: int) -> int:
        """Of a transformer by a rank, in a step; each half of a forward is one."""
        if rank not in self.mesh.subgroup.ranks:
            return 0
        kind = batch[0].model.name if batch[0].model.name in NUM_FORWARDS else batch[0].family
        together, apart = NUM_FORWARDS[kind] if any(s.guided for s in batch) else (1, 1)
        forwards = apart if self.layout.cfg > 1 or self.schedule.lanes else together
        mine = range(self.mesh.coordinate(rank, "cfg"), forwards, self.layout.cfg)
        return len(mine) * self.schedule.parts


def slug(layout: Layout) -> str:
    degrees = {"cfg": layout.cfg, "ring": layout.ring, "ulysses": layout.ulysses}
    return "-".join(f"{axis}{degree}" for axis, degree in degrees.items() if degree > 1) or "alone"


@dataclass(frozen=True, eq=False)
class Run:
    """All steps of one request, of some that share forwards, or of two in lanes.

    Args:
        ways: one a step.
        deaf: ranks attend to their own tokens only, so that what comes out is wrong.
    """

    world: int
    ways: Sequence[Way]
    batches: Sequence[Sequence[Subject]]
    name: str = ""
    deaf: bool = False

    @property
    def id(self) -> str:
        subjects = "--".join(subject.id for batch in self.batches for subject in batch)
        return f"{subjects}-{self.name or self.ways[0].id}"

    def num_calls(self, rank: int) -> int:
        return sum(way.num_calls(batch, rank) for way in self.ways for batch in self.batches)

    def num_interleaved(self, rank: int) -> int:
        """How many of those take turns with another, be it the other half."""
        found = 0
        for way in self.ways:
            calls = sum(way.num_calls(batch, rank) for batch in self.batches)
            in_lanes = way.schedule.lanes and (calls > 1 or len(self.batches) > 1)
            found += calls if way.schedule.parts > 1 or in_lanes else 0
        return found


def _every() -> Iterator[Run]:
    for subject in SUBJECTS:
        for world, layouts in LAYOUTS.items():
            is_hard = world == 4 and subject.has_three_heads and subject.guided
            for layout in layouts + (MORE if is_hard else ()):
                for name in schedules(layout, subject):
                    yield Run(world, [Way(layout, name)] * 2, [[subject]])


MOST_PARTS = 8
"""Of a sequence as short as these: each has to have a token."""


def schedules(layout: Layout, subject: Subject) -> list[str]:
    """All that mean something where tokens do not divide; lanes need two forwards on a rank."""
    if not subject.is_odd:
        return ["synchronous"]
    fitting = {
        name: schedule
        for name, schedule in SCHEDULES.items()
        if schedule.fits(layout) and layout.sequence * schedule.parts <= MOST_PARTS
    }
    return [name for name, schedule in fitting.items() if (subject.guided and layout.cfg == 1) or not schedule.lanes]


def _layouts() -> Iterator[tuple[int, Layout]]:
    return ((world, layout) for world, layouts in LAYOUTS.items() for layout in layouts)


EVERY = list(_every())
BATCHES = [
    Run(world, [Way(layout)] * 2, [twins])
    for world, layout in _layouts()
    for twins in TWINS
    if twins[0].has_three_heads
]
LANES = [
    Run(world, [Way(layout, "lanes")] * 2, [[one], [other]])
    for world, layout in _layouts()
    for one, other in PAIRS
    if SCHEDULES["lanes"].fits(layout)
]
DEAF = [Run(2, [Way(Layout(ulysses=2))] * 2, [[subject]], "deaf", deaf=True) for subject in SUBJECTS if subject.guided]
ITINERARIES = {
    "stays": [
        Way(Layout()),
        Way(Layout(ulysses=2), "halves"),
        Way(Layout(ring=2, ulysses=2), "lanes"),
        Way(Layout(cfg=2)),
        Way(Layout()),
    ],
    "moves": [
        Way(Layout(), start=1),
        Way(Layout(ring=2), start=2),
        Way(Layout(cfg=2, ulysses=2), "projections"),
        Way(Layout(ulysses=2), "head_groups", start=2),
        Way(Layout()),
    ],
}
"""Of degrees 1, 2, 4, 2, 1."""
NUM_MOVES = {"stays": 2, "moves": 3}
"""Of a state, to ranks that had no part in the step before."""
DEGREES = [Run(4, ways, [[subject]], name) for name, ways in ITINERARIES.items() for subject in WANDERERS]
RUNS = [*EVERY, *BATCHES, *LANES, *DEGREES, *DEAF]
