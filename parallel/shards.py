"""Who holds what: tokens and heads dealt out over ranks. Pure arithmetic.

Nothing has to divide: the first ranks hold one more, and where there are fewer than ranks, the last hold none.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def shard(length: int, ranks: int) -> tuple[int, ...]:
    """How many of `length` each rank holds, in order. Raises ValueError for a negative length or no rank."""
    if length < 0 or ranks < 1:
        raise ValueError(f"cannot deal {length} out over {ranks} ranks")
    each, more = divmod(length, ranks)
    return tuple(each + (rank < more) for rank in range(ranks))


def spans(lengths: Sequence[int]) -> list[slice]:
    """The slice that each rank holds, of what all hold one after the other."""
    ends = list(itertools.accumulate(lengths))
    return [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]


def head_spans(heads: int, ranks: int, head_groups: int) -> list[list[slice]]:
    """[rank][group] → a slice of the heads.

    Heads are dealt out over ranks first, then each rank's share over the groups, so that groups leave the shares even.
    """
    return [
        [
            slice(share.start + s.start, share.start + s.stop)
            for s in spans(shard(share.stop - share.start, head_groups))
        ]
        for share in spans(shard(heads, ranks))
    ]
