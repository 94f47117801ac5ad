"""What a step sharded by sequence cannot do without: its compute alone, and its exchanges alone."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import torch
import torch.distributed as dist
from overlap_arms import Arm, Inputs, Setting, Step, nothing, output_of, register, sequence_bytes
from overlap_models import FP32_BYTES, PATCH_NUMBERS, WIDTH
from overlap_peers import sharded_by_diffusers

UNDER_WAY = 2
"""Exchanges posted before the first of them is waited for: the link never idles between two of them."""


def compute_alone(setting: Setting) -> Step:
    """diffusers' sharded forward whose exchanges are local copies of the same size; its numbers mean nothing."""
    model = sharded_by_diffusers(setting)
    world = setting.world

    def step(forwards: Sequence[Inputs]) -> list[torch.Tensor]:
        with (
            mock.patch("diffusers.models.attention_dispatch._all_to_all_single", lambda x, _group: x.clone()),
            mock.patch(
                "diffusers.hooks.context_parallel.EquipartitionSharder.unshard",
                lambda tensor, dim, _mesh: torch.cat([tensor] * world, dim),
            ),
        ):
            for inputs in forwards:
                output_of(model, inputs)
        return []

    return step


def communication_alone(setting: Setting) -> Step:
    """For each attention q, k and v in one exchange, then its output; in the end the forward's outputs.

    Receives are posted before sends: gloo then uses both directions at once.
    """
    row, rank, world = setting.row, setting.rank, setting.world
    share = row.num_tokens * WIDTH // world**2
    sizes = [3 * share, share] * row.num_attentions + [row.num_output_tokens * PATCH_NUMBERS // world]
    sizes *= row.num_forwards
    assert FP32_BYTES * sum(sizes) * (world - 1) == row.sequence_bytes(world)
    others = [(rank + step) % world for step in range(1, world)]
    sends = [torch.zeros(max(sizes)) for _ in others]
    receives = [[torch.zeros(max(sizes)) for _ in others] for _ in range(UNDER_WAY)]

    def post(index: int) -> list[dist.Work]:
        size = sizes[index]
        into = receives[index % UNDER_WAY]
        works = [dist.irecv(tensor[:size], other) for tensor, other in zip(into, others, strict=True)]
        return works + [dist.isend(tensor[:size], other) for tensor, other in zip(sends, others, strict=True)]

    def step(_forwards: Sequence[Inputs]) -> list[torch.Tensor]:
        under_way: list[list[dist.Work]] = []
        for index in range(len(sizes)):
            if len(under_way) == UNDER_WAY:
                wait(under_way.pop(0))
            under_way.append(post(index))
        for works in under_way:
            wait(works)
        return []

    return step


def wait(works: Sequence[dist.Work]) -> None:
    for work in works:
        work.wait()


register(Arm("compute alone", "sequence", compute_alone, "compute", wire_bytes=nothing))
register(Arm("communication alone", "sequence", communication_alone, "communication", wire_bytes=sequence_bytes))
