"""Two gloo ranks on which a step fails alike: `python -m tests.parallel.failing_rank FOLDER`. Each writes what it saw.

By schedule and layout: what the step that failed raised, and how far the next one is from one rank's.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.checkpoints import save_wan
from tests.serve.engine.test_loop import order

from raydiance.kernels.attention import attention
from raydiance.models import registry
from raydiance.parallel.groups import open_groups
from raydiance.parallel.mesh import Layout, Mesh, Subgroup
from raydiance.parallel.schedule import SCHEDULES
from raydiance.parallel.tokens import ShardedTokens
from raydiance.serve.engine.engine import Engine
from raydiance.serve.engine.orders import Turn
from raydiance.serve.engine.rank import Rank

DEADLINE_S = 10.0
LONGEST_S = 60
WORLD = 2
WAYS = {
    "projections": (Layout(ulysses=2), "projections"),
    "head_groups": (Layout(ulysses=2), "head_groups"),
    "halves": (Layout(ulysses=2), "halves"),
    "lanes": (Layout(ulysses=2), "lanes"),
    "ring": (Layout(ring=2), "synchronous"),
    "ring-lanes": (Layout(ring=2), "lanes"),
    "cfg": (Layout(cfg=2), "synchronous"),
}


class Failing:
    """One rank's attention, which does not fit in memory from a call on, while it is told so."""

    def __init__(self) -> None:
        self.calls_left: int | None = None

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Any:
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise torch.OutOfMemoryError("too big")
        return attention(q, k, v, **options)


def one_way(rank: Rank, failing: Failing, layout: Layout, schedule: str, expected: Sequence[torch.Tensor]) -> Any:
    name = f"{layout}-{schedule}"
    rank.begin(start := order(name, steps=6))
    turn = Turn(((start.id,),), Mesh(Subgroup(0, WORLD), layout), SCHEDULES[schedule])
    raised, errors = [], []
    for calls, latents in zip((0, 1, 3), expected, strict=False):
        failing.calls_left = calls
        try:
            rank.turn(turn)
        except Exception as error:  # noqa: BLE001 - it is told
            raised.append(f"{type(error).__name__}: {error}")
        failing.calls_left = None
        rank.turn(turn)
        errors.append((rank._held[start.id].latents - latents).abs().max().item())
    return {"raised": raised, "error": max(errors)}


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    try:
        store = f"file://{folder}/store"
        timeout = timedelta(seconds=DEADLINE_S)
        dist.init_process_group("gloo", init_method=store, world_size=WORLD, rank=rank, timeout=timeout)
        groups, failing = open_groups(DEADLINE_S), Failing()
        family = registry.load(folder / "wan", "denoise", "m")
        tokens = ShardedTokens(groups, rank, failing)
        family.set_tokens(tokens)
        held = Rank(Engine(family), rank, groups, tokens)
        expected = alone(held)
        seen = {}
        for name, (layout, schedule) in WAYS.items():
            try:
                seen[name] = one_way(held, failing, layout, schedule, expected)
            except Exception as error:  # noqa: BLE001 - it is told
                seen[name] = {"raised": [], "broken": f"{type(error).__name__}: {error}"}
        (folder / f"{rank}.json").write_text(json.dumps(seen))
        dist.destroy_process_group()
    except BaseException:
        (folder / f"{rank}.error").write_text(traceback.format_exc())
        raise


def alone(rank: Rank) -> list[torch.Tensor]:
    rank.begin(start := order("alone", steps=6))
    turn = Turn(((start.id,),), Mesh(Subgroup(rank.rank, 1), Layout()), SCHEDULES["synchronous"])
    found = []
    for _ in range(3):
        rank.turn(turn)
        found.append(rank._held[start.id].latents)
    return found


if __name__ == "__main__":
    save_wan(Path(sys.argv[1]) / "wan")
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=main, args=(i, Path(sys.argv[1])), daemon=True) for i in range(WORLD)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(LONGEST_S)
        each.kill()
    sys.exit(os.EX_OK if all(each.exitcode == 0 for each in ranks) else 1)
