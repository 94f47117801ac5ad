"""Room on free ranks for aligned subgroups: first how many of each size, then where. Pure arithmetic.

Subgroups are apart or one holds the other, so some sizes fit into the free ranks exactly if for every power of two `n`
those of at least `n` ranks together need no more ranks than the free blocks of at least `n` ranks have. So sizes can be
chosen, and changed, without a thought for where they will be; placed from the largest to the smallest, each into the
smallest block that takes it, they fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raydiance.parallel.mesh import Subgroup


def blocks(free: Iterable[int]) -> dict[int, list[int]]:
    """The largest aligned subgroups that are wholly free: by size, where they start."""
    starts, size, found = set(free), 1, {}
    while starts:
        merged = {start for start in starts if start % (2 * size) == 0 and start + size in starts}
        found[size] = sorted(start for start in starts if start - start % (2 * size) not in merged)
        starts, size = merged, 2 * size
    return found


class Room:
    """Args: free: ranks that may be given."""

    def __init__(self, free: Iterable[int]) -> None:
        self._free = frozenset(free)
        self._blocks = blocks(self._free)
        self._left = _from_each_size_on(self._blocks)

    @property
    def num_free(self) -> int:
        """Ranks that are not taken."""
        return self._left[0] if self._left else 0

    def fits(self, size: int) -> bool:
        bits = size.bit_length()
        return bits <= len(self._left) and min(self._left[:bits]) >= size

    def take(self, size: int) -> None:
        """Raises ValueError where it does not fit."""
        if not self.fits(size):
            raise ValueError(f"there is no room for {size} ranks")
        for bit in range(size.bit_length()):
            self._left[bit] -= size

    def doubles(self, size: int) -> bool:
        """Whether what has taken so many ranks can have twice as many."""
        bits = size.bit_length()
        return bits < len(self._left) and min(self._left[:bits]) >= size and self._left[bits] >= 2 * size

    def double(self, size: int) -> None:
        """Raises ValueError where `doubles` says no."""
        if not self.doubles(size):
            raise ValueError(f"there is no room to make {size} ranks {2 * size}")
        bits = size.bit_length()
        for bit in range(bits):
            self._left[bit] -= size
        self._left[bits] -= 2 * size

    def withhold(self, block: Subgroup) -> bool:
        """Leaves the free ranks of a block untaken, if what was taken fits into the others."""
        free = self._free.difference(block.ranks)
        its_blocks = blocks(free)
        before, after = _from_each_size_on(self._blocks), _from_each_size_on(its_blocks)
        after += [0] * (len(before) - len(after))
        left = [still - (had - has) for still, had, has in zip(self._left, before, after, strict=True)]
        if min(left, default=0) < 0:
            return False
        self._free, self._blocks, self._left = free, its_blocks, left[: len(its_blocks)]
        return True

    def places(self, sizes: Sequence[int]) -> list[Subgroup]:
        """Where the sizes that were taken are, in their order: large ones first, each at the lowest ranks of the
        smallest block that takes it."""
        open_blocks = {size: starts[::-1] for size, starts in self._blocks.items()}
        found: dict[int, Subgroup] = {}
        for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
            size = block = sizes[i]
            while not open_blocks.get(block):
                block *= 2
            start = open_blocks[block].pop()
            while block > size:
                block //= 2
                open_blocks.setdefault(block, []).append(start + block)
            found[i] = Subgroup(start, size)
        return [found[i] for i in range(len(sizes))]


def _from_each_size_on(by_size: dict[int, list[int]]) -> list[int]:
    """For each power of two, the ranks in blocks of at least so many."""
    sums, total = [], 0
    for size in sorted(by_size, reverse=True):
        total += size * len(by_size[size])
        sums.append(total)
    return sums[::-1]
