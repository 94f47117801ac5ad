"""Worlds of gloo ranks: `python -m tests.parallel.rank FOLDER` runs them in turn; each rank writes what it saw.

The ranks are forked, so that torch is imported once for all of them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.parallel.cases import BATCH, WIDTH, Case, cases, naive

from raydiance.parallel.comm import Communicator, Exchange
from raydiance.parallel.errors import ExchangeMisused, PeerLost
from raydiance.parallel.groups import Groups, open_groups
from raydiance.parallel.hybrid import strategy
from raydiance.parallel.mesh import Layout, Mesh, Subgroup
from raydiance.parallel.schedule import Schedule
from raydiance.parallel.shards import spans

DEADLINE_S = 60.0
SHORT_DEADLINE_S = 2.0
LONGEST_S = 150  # for one world; machines are busy
PAIR = (0, 1)


def every_case(rank: int, world: int, folder: Path) -> dict[str, Any]:
    """By case in which the rank has a part: the largest error against one rank, and how many bytes were sent."""
    groups = open_groups(DEADLINE_S)
    dist.new_group = refuse  # type: ignore[assignment]
    seen = {case.id: one_case(case, groups, rank) for case in cases(world) if rank in case.mesh.subgroup.ranks}
    groups.close()
    return seen


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("a process group was made after the start")


def one_case(case: Case, groups: Groups, rank: int) -> dict[str, float]:
    q, k, v = case.whole(branch=case.mesh.coordinate(rank, "cfg"))
    mine = spans(case.lengths)[case.mesh.sequence(rank).index(rank)]
    attention = strategy(groups, case.mesh, rank, case.local, case.lengths, case.schedule)
    before = groups.bytes_sent
    out = attention(*(given(x[:, mine]) for x in (q, k, v)))
    groups.check_idle()
    assert out.shape == q[:, mine].shape
    assert out.dtype == case.dtype
    expected = naive(q.float(), k.float(), v.float())[0][:, mine]
    error = (out.float() - expected).abs().max().item() if out.numel() else 0.0
    return {"error": error if error == error else float("inf"), "bytes": groups.bytes_sent - before}


def given(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: x


def misuse(rank: int, world: int, folder: Path) -> dict[str, Any]:
    """By misuse: what was raised."""
    groups = open_groups(DEADLINE_S)
    comm, other = groups[PAIR].incoming, groups[PAIR].outgoing
    sends, receives = [torch.ones(4) for _ in PAIR], [torch.zeros(4) for _ in PAIR]
    seen = {}
    exchange = comm.all_to_all(sends, receives)
    seen["never"] = said(ExchangeMisused, groups.check_idle)
    exchange.wait()
    assert all(map(torch.equal, sends, receives))
    groups.check_idle()
    seen["twice"] = said(ExchangeMisused, exchange.wait)
    seen["lists"] = said(ValueError, lambda: comm.all_to_all(sends[:1], receives))
    seen["strides"] = said(ValueError, lambda: comm.ring(torch.ones(4, 4).t(), torch.ones(4, 4)))
    seen["deadline"] = said(ValueError, lambda: type(comm)(PAIR, comm._group, 0))
    seen["stranger"] = said(ValueError, lambda: type(comm)((1 - rank,), comm._group, 1))
    with comm:
        comm.ring(sends[0], receives[0]).wait()
    seen["closed"] = said(ExchangeMisused, lambda: comm.ring(sends[0], receives[0]))
    begun: list[Exchange] = []
    seen["inside"] = said(RuntimeError, lambda: fail_inside(other, begun))  # is not hidden by what was never waited for
    seen["never, at the end"] = said(ExchangeMisused, groups.close)
    begun[0].wait()
    return seen


def fail_inside(comm: Communicator, begun: list[Exchange]) -> None:
    with comm:
        begun.append(comm.ring(torch.ones(4), torch.zeros(4)))
        raise RuntimeError("inside")


def said(error: type[Exception], call: Callable[[], object]) -> str:
    try:
        call()
    except error as raised:
        return str(raised)
    raise AssertionError(f"no {error.__name__} was raised")


def lost(rank: int, world: int, folder: Path, leave: Callable[[], None], large: bool, ring: bool) -> dict[str, Any]:
    """Rank 1 leaves in mid-run; what does rank 0 say, and after how long?"""
    groups = open_groups(SHORT_DEADLINE_S)
    layout = Layout(ring=2) if ring else Layout(ulysses=2)
    tokens, schedule = 4096 if large else 4, Schedule(head_groups=1 if ring else 2)
    attention = strategy(groups, Mesh(Subgroup(0, 2), layout), rank, quick, (tokens, tokens), schedule)
    qkv = [given(x) for x in torch.ones(3, BATCH, tokens, 16, WIDTH)]
    attention(*qkv)
    if rank == 1:
        leave()
    begin = time.monotonic()
    try:
        attention(*qkv)
    except PeerLost as error:
        after_s = time.monotonic() - begin
        again = said(ExchangeMisused, lambda: attention(*qkv))
        return {"said": str(error), "rank": error.rank, "peers": error.peers, "after_s": after_s, "again": again}
    raise AssertionError("nothing was lost")


def quick(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return v.contiguous(), v.sum(-1).transpose(1, 2)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


WHAT: dict[str, Callable[[int, int, Path], dict[str, Any]]] = {
    "cases": every_case,
    "misuse": misuse,
    "stops-ulysses": lambda *a: lost(*a, leave=stop, large=True, ring=False),
    "stops-ring": lambda *a: lost(*a, leave=stop, large=False, ring=True),
    "dies-ulysses": lambda *a: lost(*a, leave=die, large=False, ring=False),
}


LOST = ("stops-ulysses", "stops-ring", "dies-ulysses")
WORLDS = (("cases", 2), ("cases", 4), ("misuse", 2), *((what, 2) for what in LOST))


def poisoned(like: torch.Tensor, *shape: int, **options: Any) -> torch.Tensor:
    """Memory that nobody wrote is NaN."""
    return like.new_full(shape, float("nan"), **options)


def main(what: str, world: int, rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    torch.Tensor.new_empty = poisoned  # type: ignore[method-assign]
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            world_size=world,
            rank=rank,
            timeout=timedelta(seconds=DEADLINE_S),
        )
        (folder / f"{rank}.json").write_text(json.dumps(WHAT[what](rank, world, folder)))
        dist.destroy_process_group()
    except BaseException:
        (folder / f"{rank}.error").write_text(traceback.format_exc())
        raise


def run(what: str, size: int, folder: Path) -> None:
    """Writes how each rank ended, too; one that is stopped is killed when the others are done."""
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=main, args=(what, size, rank, folder), daemon=True) for rank in range(size)]
    for rank in ranks:
        rank.start()
    for rank in ranks[:1] if what in LOST else ranks:
        rank.join(LONGEST_S)
    for rank in ranks:
        if what in LOST:
            rank.join(SHORT_DEADLINE_S)
        rank.kill()
        rank.join()
    (folder / "ended.json").write_text(json.dumps([rank.exitcode for rank in ranks]))


if __name__ == "__main__":
    assert len(os.listdir("/proc/self/task")) == 1, "forked with threads running"
    for what, size in WORLDS:
        (folder := Path(sys.argv[1]) / f"{what}-{size}").mkdir()
        run(what, size, folder)
