"""NCCL between GPUs, and lanes on CUDA streams. Not yet run: no GPU was to be had."""

from __future__ import annotations

import functools
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from raydiance.kernels.attention import attention
from raydiance.parallel.groups import open_groups
from raydiance.parallel.lanes import Lanes
from raydiance.parallel.mesh import Layout, Mesh, Subgroup
from raydiance.parallel.schedule import SCHEDULES
from raydiance.parallel.tokens import ShardedTokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TOKENS, HEADS, WIDTH = 1030, 6, 64
TOLERANCE = 3e-2  # bf16, values up to 4


def qkv(seed: int, device: torch.device) -> list[torch.Tensor]:
    make = torch.Generator().manual_seed(seed)
    return [torch.randn(1, TOKENS, HEADS, WIDTH, generator=make).to(device, torch.bfloat16) for _ in range(3)]


def attended(tokens: ShardedTokens, device: torch.device, seed: int) -> torch.Tensor:
    """Attention of a sequence that is cut, attended to and joined again."""
    tokens.begin(video=TOKENS)
    q, k, v = (tokens.cut(x, 1, "video") for x in qkv(seed, device))
    return tokens.join(tokens.attend(lambda: q, lambda: k, lambda: v, ("video",)), 1, "video")


def expected(device: torch.device, seed: int) -> torch.Tensor:
    q, k, v = (x.float() for x in qkv(seed, device))
    return attention(q, k, v, backend="naive")[0]


def rank(index: int, world: int, folder: Path) -> None:
    torch.cuda.set_device(index)
    device = torch.device("cuda", index)
    dist.init_process_group(
        "nccl", init_method=f"file://{folder}/store", rank=index, world_size=world, device_id=device
    )
    groups = open_groups(60)
    tokens = ShardedTokens(groups, index, attention)
    for layout in (Layout(ulysses=world), Layout(ring=world)):
        for name, schedule in SCHEDULES.items():
            if not schedule.fits(layout):
                continue
            tokens.use(Mesh(Subgroup(0, world), layout), schedule)
            call: Callable[[], torch.Tensor] = functools.partial(attended, tokens, device, 0)
            lanes = 2 if schedule.lanes else schedule.parts
            found = tokens.lanes.run([call] * lanes)[0] if lanes > 1 else call()
            error = (found.float() - expected(device, 0)).abs().max().item()
            assert error <= TOLERANCE, (str(layout), name, error)
    groups.close()
    dist.destroy_process_group()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_every_schedule_over_nccl(tmp_path: Path) -> None:
    os.environ.setdefault("NCCL_DEBUG", "WARN")
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=rank, args=(i, 2, tmp_path)) for i in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(200)
        process.kill()
    assert [process.exitcode for process in ranks] == [0, 0]


def test_lanes_have_streams_of_their_own_and_what_they_made_is_there_afterwards() -> None:
    lanes, device = Lanes(), torch.device("cuda", 0)
    x = torch.randn(2048, 2048, device=device)

    def work(turns: int) -> tuple[int, torch.Tensor]:
        y = x
        for _ in range(turns):
            y = torch.tanh(y @ x)
            lanes.switch()
        return torch.cuda.current_stream().cuda_stream, y

    (first, a), (second, b) = lanes.run([lambda: work(8), lambda: work(8)])
    assert first != second
    assert torch.equal(a, b)
