"""Which ranks work together: the axes cfg x ring x ulysses over aligned subgroups of ranks. Pure arithmetic.

A subgroup is `size` ranks from `start` on, `size` a power of two and `start` a multiple of it, so that two subgroups
are apart or one holds the other. Within it the ulysses axis varies fastest, then ring, then cfg: what exchanges most
sits on neighbouring ranks, which are on one node (USP, arXiv:2405.07719).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Axis = Literal["cfg", "ring", "ulysses"]
AXES: tuple[Axis, ...] = ("cfg", "ring", "ulysses")


def is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, … up to and with `most`."""
    return [1 << bit for bit in range(most.bit_length())] if most > 0 else []


@dataclass(frozen=True, order=True)
class Subgroup:
    """Raises ValueError for ranks that are not an aligned power of two of them."""

    start: int
    size: int

    def __post_init__(self) -> None:
        if not is_power_of_two(self.size) or self.start < 0 or self.start % self.size:
            raise ValueError(f"{self.size} ranks from rank {self.start} on are no aligned power-of-two subgroup")

    @property
    def ranks(self) -> range:
        return range(self.start, self.start + self.size)


@dataclass(frozen=True, order=True)
class Layout:
    """How many ranks each axis has. Raises ValueError where a degree is no power of two."""

    cfg: int = 1
    ring: int = 1
    ulysses: int = 1

    def __post_init__(self) -> None:
        for axis in AXES:
            if not is_power_of_two(getattr(self, axis)):
                raise ValueError(f"the {axis} degree must be a power of two, not {getattr(self, axis)}")

    def __str__(self) -> str:
        return f"cfg {self.cfg} x ring {self.ring} x ulysses {self.ulysses}"

    @property
    def size(self) -> int:
        return self.cfg * self.ring * self.ulysses

    @property
    def sequence(self) -> int:
        """Over how many ranks a sequence is sharded."""
        return self.ring * self.ulysses

    def stride(self, axis: Axis) -> int:
        """How far apart neighbours on this axis are, in ranks."""
        return {"cfg": self.sequence, "ring": self.ulysses, "ulysses": 1}[axis]


@dataclass(frozen=True, order=True)
class Mesh:
    """A layout on a subgroup. Raises ValueError where their sizes differ."""

    subgroup: Subgroup
    layout: Layout

    def __post_init__(self) -> None:
        if self.subgroup.size != self.layout.size:
            raise ValueError(f"{self.layout} needs {self.layout.size} ranks, the subgroup has {self.subgroup.size}")

    def coordinate(self, rank: int, axis: Axis) -> int:
        """Where a rank is on an axis. Raises ValueError for a rank of another subgroup."""
        if rank not in self.subgroup.ranks:
            raise ValueError(f"rank {rank} is not among ranks {list(self.subgroup.ranks)}")
        degree: int = getattr(self.layout, axis)
        return (rank - self.subgroup.start) // self.layout.stride(axis) % degree

    def members(self, rank: int, axis: Axis) -> tuple[int, ...]:
        """The ranks that differ from this one on this axis only, in the order of their coordinates; itself is one."""
        stride = self.layout.stride(axis)
        first = rank - self.coordinate(rank, axis) * stride
        degree: int = getattr(self.layout, axis)
        return tuple(range(first, first + degree * stride, stride))

    def sequence(self, rank: int) -> tuple[int, ...]:
        """The ranks that share a sequence with this one, in the order in which they hold its shards."""
        size = self.layout.sequence
        first = rank - (rank - self.subgroup.start) % size
        self.coordinate(rank, "cfg")  # raises for a rank of another subgroup
        return tuple(range(first, first + size))


def enclosing(ranks: Sequence[int]) -> Subgroup:
    """The smallest subgroup that has all of some ranks."""
    size = 1
    while min(ranks) // size != max(ranks) // size:
        size *= 2
    return Subgroup(min(ranks) // size * size, size)


def subgroups(world: int) -> Iterator[Subgroup]:
    """Every aligned power-of-two subgroup of ranks 0 … world - 1, the small ones first."""
    if world < 1:
        raise ValueError(f"a world has at least one rank, not {world}")
    for size in powers_of_two(world):
        yield from (Subgroup(start, size) for start in range(0, world - size + 1, size))


def layouts(world: int) -> list[Mesh]:
    """Every layout on every subgroup."""
    return [
        Mesh(subgroup, Layout(cfg, ring, subgroup.size // (cfg * ring)))
        for subgroup in subgroups(world)
        for cfg in powers_of_two(subgroup.size)
        for ring in powers_of_two(subgroup.size // cfg)
    ]


def groups(world: int) -> list[tuple[int, ...]]:
    """The sets of two and more ranks that any axis of any layout needs, in one order on every rank.

    With a process group made for each at start, no change of degree makes one. What shares a sequence, and a whole
    subgroup, are among them: each is the ulysses axis of some layout.
    """
    found = {mesh.members(rank, axis) for mesh in layouts(world) for rank in mesh.subgroup.ranks for axis in AXES}
    return sorted((ranks for ranks in found if len(ranks) > 1), key=lambda ranks: (len(ranks), ranks))
