"""What the ranks of a world are put through: every layout, with tokens and heads that divide and that do not."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import torch

from raydiance.kernels.attention import attention
from raydiance.parallel.mesh import Mesh, layouts
from raydiance.parallel.schedule import Schedule
from raydiance.parallel.shards import shard
from raydiance.parallel.ulysses import Local

BATCH, WIDTH = 2, 8


def naive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, L, H, D] → out [B, L, H, D] and lse [B, H, L], in fp32; refuses to be called for nothing."""
    assert q.numel()
    assert k.numel()
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) * q.shape[-1] ** -0.5
    out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v.float())
    return out.to(q.dtype), scores.logsumexp(-1)


@dataclass(frozen=True)
class Case:
    mesh: Mesh
    lengths: tuple[int, ...]  # of each rank that shares a sequence
    heads: int
    head_groups: int = 1
    dtype: torch.dtype = torch.float32
    early: bool = False
    backend: str = "naive"  # the one here, or one of the kernels

    @property
    def schedule(self) -> Schedule:
        return Schedule(early=self.early, head_groups=self.head_groups)

    @property
    def local(self) -> Local:
        if self.backend == "naive":
            return naive
        return functools.partial(attention, backend=self.backend, with_lse=self.mesh.layout.ring > 1)

    @property
    def id(self) -> str:
        layout = self.mesh.layout
        ranks = f"ranks{self.mesh.subgroup.start}-{self.mesh.subgroup.ranks[-1]}"
        degrees = f"cfg{layout.cfg}-ring{layout.ring}-ulysses{layout.ulysses}"
        tokens = "+".join(map(str, self.lengths))
        dtype = str(self.dtype).removeprefix("torch.")
        how = f"groups{self.head_groups}-{dtype}-{self.backend}" + ("-early" if self.early else "")
        return f"{ranks}-{degrees}-tokens{tokens}-heads{self.heads}-{how}"

    def whole(self, branch: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v of all tokens, of one guidance branch; scores are large enough for the merge to matter."""
        make = torch.Generator().manual_seed(branch)
        shape = (3, BATCH, sum(self.lengths), self.heads, WIDTH)
        q, k, v = torch.randn(shape, generator=make).to(self.dtype)
        return q * 3, k, v

    def bytes_sent(self, rank: int) -> int:
        """What one rank should send, from the definitions."""
        mesh = self.mesh
        ring, ulysses = mesh.layout.ring, mesh.layout.ulysses
        across, inside = mesh.coordinate(rank, "ring"), mesh.coordinate(rank, "ulysses")
        block = self.lengths[across * ulysses : (across + 1) * ulysses]
        shares = shard(self.heads, ulysses)
        others = [i for i in range(ulysses) if i != inside]
        elements = sum(3 * block[inside] * shares[i] for i in others)  # q, k and v of the heads of others
        elements += sum(block[i] * shares[inside] for i in others)  # out, of the tokens of others
        blocks = [sum(self.lengths[i * ulysses : (i + 1) * ulysses]) for i in range(ring)]
        if ring > 1:  # every rank's k and v pass through here, but for those of the next one, which end here
            elements += 2 * shares[inside] * (sum(blocks) - blocks[(across + 1) % ring])
        return elements * BATCH * WIDTH * self.dtype.itemsize


def cases(world: int) -> list[Case]:
    found = []
    for mesh in layouts(world):
        ranks = mesh.layout.sequence
        joint = tuple(map(sum, zip(shard(5, ranks), reversed(shard(18, ranks)), strict=True)))
        for tokens, heads in itertools.product((shard(24, ranks), shard(13, ranks), shard(3, ranks), joint), (4, 5)):
            found.append(Case(mesh, tokens, heads))
        if mesh.layout.ulysses > 1:
            some = ((13, 4, 2), (13, 5, 3), (24, 3, 2), (24, 1, 4))
            for early in (False, True):
                found += [Case(mesh, shard(tokens, ranks), heads, n, early=early) for tokens, heads, n in some]
        found += [Case(mesh, shard(13, ranks), 5, 2, dtype) for dtype in (torch.bfloat16, torch.float16)]
        found += [Case(mesh, shard(tokens, ranks), 5, 2, backend="sdpa") for tokens in (24, 13, 3)]
    return list({case.id: case for case in found}.values())
