"""Attention to a sequence of which each rank holds a shard: Ulysses inside, ring across (USP, arXiv:2405.07719)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from raydiance.parallel.groups import Groups
from raydiance.parallel.mesh import Mesh
from raydiance.parallel.ring import Ring
from raydiance.parallel.shards import spans
from raydiance.parallel.ulysses import Local, Ulysses, check_qkv

Strategy = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""This rank's q, k, v [B, L_local, H, D] → its part of the attention to all tokens, [B, L_local, H, D]."""


class Whole:
    """The strategy of one rank that holds the whole sequence: no exchange."""

    def __init__(self, local: Local, num_tokens: int) -> None:
        self.local = local
        self.num_tokens = num_tokens

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        check_qkv(q, k, v, self.num_tokens)
        return self.local(q, k, v)[0]


def strategy(
    groups: Groups | None, mesh: Mesh, rank: int, local: Local, lengths: Sequence[int], head_groups: int = 1
) -> Strategy:
    """What a rank attends with under a layout. Making one exchanges nothing and makes no process group.

    Args:
    groups: None where there is one rank only.
    lengths: how many tokens each rank of `mesh.sequence(rank)` holds, in that order. Which tokens is all one:
        attention without a mask knows no places, so each rank can hold a shard of the text and one of the image.
    head_groups: see `Ulysses`.

    Raises ValueError for a rank outside of the mesh, or another number of lengths than ranks.
    """
    layout = mesh.layout
    if len(lengths) != layout.sequence:
        raise ValueError(f"{len(lengths)} lengths for the {layout.sequence} ranks of {layout} that share a sequence")
    ring, ulysses = mesh.coordinate(rank, "ring"), mesh.coordinate(rank, "ulysses")
    if layout.sequence == 1:
        return Whole(local, lengths[ulysses])
    if groups is None:
        raise ValueError(f"{layout} needs process groups")
    blocks = [tuple(lengths[span]) for span in spans([layout.ulysses] * layout.ring)]
    if layout.ring == 1:
        return Ulysses(groups[mesh.members(rank, "ulysses")], local, blocks[ring], head_groups)
    across = Ring(groups[mesh.members(rank, "ring")], local, [sum(block) for block in blocks])
    if layout.ulysses == 1:
        return across
    return Ulysses(groups[mesh.members(rank, "ulysses")], across.attend, blocks[ring], head_groups)
