"""Data-parallel training over processes of one thread each.

On small models two such processes are faster than two threads, which wait for each other in every operation, and
much faster on a machine that is shared: a process that has to wait for its core delays a step, not each operation.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Team:
    """The processes that train together. Each draws its own batches; gradients are averaged, so weights stay equal."""

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size

    def average(self, params: list[Any], elapsed_s: float) -> float:
        """Average the gradients of `params` in place over the team; returns the mean of `elapsed_s`.

        Schedules follow the returned time, so that every process has the same learning rate and ends at the same step.
        """
        if self.size == 1:
            return elapsed_s
        grads: list[Tensor] = [param.grad for param in params if param.grad is not None]
        flat = torch.cat([*(grad.reshape(-1) for grad in grads), torch.tensor([elapsed_s])]) / self.size
        dist.all_reduce(flat)
        for grad, mean in zip(grads, flat[:-1].split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(mean.view_as(grad))
        return float(flat[-1])

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


def launch(function: Callable[..., None], workers: int, *args: Any) -> None:
    """Call `function(team, *args)` in `workers` processes, or in this one if there is to be only one."""
    torch.set_num_threads(1)
    if workers == 1:
        function(Team(), *args)
        return
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder) / "meeting"
        torch.multiprocessing.spawn(_member, (function, workers, meeting, args), nprocs=workers)  # type: ignore[attr-defined,no-untyped-call]


def _member(rank: int, function: Callable[..., None], workers: int, meeting: Path, args: tuple[Any, ...]) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=workers)
    try:
        function(Team(rank, workers), *args)
    finally:
        dist.destroy_process_group()
