"""Attention to a sequence of which each rank holds a shard: Ulysses inside, ring across (USP, arXiv:2405.07719)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from raydiance.parallel.groups import Groups
from raydiance.parallel.mesh import Mesh
from raydiance.parallel.ring import Ring
from raydiance.parallel.schedule import SCHEDULES, Schedule
from raydiance.parallel.shards import spans
from raydiance.parallel.ulysses import Local, Projection, Ulysses, check_qkv

Strategy = Callable[[Projection, Projection, Projection], torch.Tensor]
"""What makes this rank's q, k, v [B, L_local, H, D] → its part of the attention to all tokens, [B, L_local, H, D]."""


class Whole:
    """The strategy of one rank that holds the whole sequence: no exchange."""

    def __init__(self, local: Local, num_queries: int, num_keys: int) -> None:
        self.local = local
        self.num_queries = num_queries
        self.num_keys = num_keys

    def __call__(self, q: Projection, k: Projection, v: Projection) -> torch.Tensor:
        value, key = v(), k()
        query = q()
        check_qkv(query, key, value, self.num_queries, self.num_keys)
        return self.local(query, key, value)[0]


def strategy(
    groups: Groups | None,
    mesh: Mesh,
    rank: int,
    local: Local,
    lengths: Sequence[int],
    schedule: Schedule = SCHEDULES["synchronous"],
    key_lengths: Sequence[int] | None = None,
) -> Strategy:
    """What a rank attends with under a layout. Making one exchanges nothing and makes no process group.

    Args:
    groups: None where there is one rank only.
    lengths: how many queries each rank of `mesh.sequence(rank)` holds, in that order. Which tokens is all one:
        attention without a mask knows no places, so each rank can hold a shard of the text and one of the image.
    schedule: its lanes are the caller's.
    key_lengths: how many keys; `lengths` where None.

    Raises ValueError for a rank outside of the mesh, or another number of lengths than ranks.
    """
    layout = mesh.layout
    keys = lengths if key_lengths is None else key_lengths
    for each in (lengths, keys):
        if len(each) != layout.sequence:
            raise ValueError(f"{len(each)} lengths for the {layout.sequence} ranks of {layout} that share a sequence")
    ring, ulysses = mesh.coordinate(rank, "ring"), mesh.coordinate(rank, "ulysses")
    if layout.sequence == 1:
        return Whole(local, lengths[ulysses], keys[ulysses])
    if groups is None:
        raise ValueError(f"{layout} needs process groups")
    of_queries, of_keys = ([tuple(each[s]) for s in spans([layout.ulysses] * layout.ring)] for each in (lengths, keys))
    attend = local
    if layout.ring > 1:
        totals = [[sum(block) for block in blocks] for blocks in (of_queries, of_keys)]
        across = Ring(groups[mesh.members(rank, "ring")], local, *totals)
        if layout.ulysses == 1:
            return across
        attend = across.attend
    link = groups[mesh.members(rank, "ulysses")]
    return Ulysses(link, attend, of_queries[ring], schedule.head_groups, of_keys[ring], schedule.early)
