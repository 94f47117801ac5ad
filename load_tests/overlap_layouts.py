"""Layouts that need almost no exchange: a request a rank, and a branch of a guidance pair a rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from overlap_arms import Arm, Inputs, Row, Setting, Step, nothing, output_of, register


def whole(setting: Setting) -> Step:
    """Every rank does a whole work of its own; here all have the same inputs, so that all can be checked."""
    model = setting.model()
    return lambda forwards: [output_of(model, inputs) for inputs in forwards]


def branches(setting: Setting) -> Step:
    """Rank 0 runs the first forward and rank 1 the second one; both get both outputs."""
    model = setting.model()

    def step(forwards: Sequence[Inputs]) -> list[torch.Tensor]:
        own = output_of(model, forwards[setting.rank])
        return swapped(own, setting.rank)

    return step


def branches_compute(setting: Setting) -> Step:
    model = setting.model()

    def step(forwards: Sequence[Inputs]) -> list[torch.Tensor]:
        output_of(model, forwards[setting.rank])
        return []

    return step


def branches_communication(setting: Setting) -> Step:
    output = torch.zeros(setting.row.branch_bytes() // 4)

    def step(_forwards: Sequence[Inputs]) -> list[torch.Tensor]:
        swapped(output, setting.rank)
        return []

    return step


def swapped(own: torch.Tensor, rank: int) -> list[torch.Tensor]:
    """The own one of two tensors and the other rank's, in the order of the ranks."""
    own = own.contiguous()
    other = torch.empty_like(own)
    for work in [dist.irecv(other, 1 - rank), dist.isend(own, 1 - rank)]:
        work.wait()
    return [own, other] if rank == 0 else [other, own]


def is_split_in_branches(row: Row, world: int) -> bool:
    return row.forwards == "pair" and world == 2


def branch_bytes(row: Row, _world: int) -> int:
    return row.branch_bytes()


register(Arm("one request a rank", "request", whole, works=lambda world: world, wire_bytes=nothing))
for _name, _setup, _role, _wire_bytes in (
    ("cfg: compute alone", branches_compute, "compute", nothing),
    ("cfg: communication alone", branches_communication, "communication", branch_bytes),
    ("one branch a rank", branches, "step", branch_bytes),
):
    register(Arm(_name, "cfg", _setup, _role, takes=is_split_in_branches, wire_bytes=_wire_bytes))
