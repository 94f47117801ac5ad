"""Worlds of gloo ranks that share forwards: `python -m tests.parallel.spread_rank FOLDER` runs them in turn."""

from __future__ import annotations

import importlib
import os
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.parallel import rank as ranks
from tests.parallel.rank import DEADLINE_S, LONGEST_S, SHORT_DEADLINE_S, said

from raydiance.models.tiles import TileRunner
from raydiance.parallel.comm import Communicator
from raydiance.parallel.errors import ExchangeMisused, PeerLost
from raydiance.parallel.spread import Spread

DTYPES = (torch.float32, torch.bfloat16, torch.float64)
VAES = ("image", "wan")
SIZES = ((7, 6), (4, 5), (3, 3))  # of latents: nine tiles, two by two, and one


@dataclass(frozen=True)
class Number:
    """A forward that returns its own number, in a shape and type of its own; the fourth returns nothing."""

    number: int
    seen: list[int]

    @property
    def shape(self) -> tuple[int, ...]:
        return (2, 0 if self.number == 3 else self.number + 1)

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.number % len(DTYPES)]

    device = torch.device("cpu")

    @property
    def value(self) -> torch.Tensor:
        return torch.full(self.shape[::-1], 10 + self.number, dtype=self.dtype).t()  # not contiguous

    @property
    def size_bytes(self) -> int:
        return self.value.numel() * self.dtype.itemsize

    def call(self) -> torch.Tensor:
        self.seen.append(self.number)
        return self.value


def communicator(world: int, deadline_s: float = DEADLINE_S) -> Communicator:
    group = dist.new_group(list(range(world)), timeout=timedelta(seconds=DEADLINE_S))
    return Communicator(range(world), group, deadline_s)


def shares(rank: int, world: int, folder: Path) -> dict[str, Any]:
    """By who wants the results, and by how many forwards there are: what was run here, what came, what was sent."""
    comm = communicator(world)
    found: dict[str, Any] = {}
    for wanted in ("all", "first"):
        for count in range(2 * world + 2):
            seen: list[int] = []
            forwards = [Number(i, seen) for i in range(count)]
            before = comm.bytes_sent
            results = Spread(comm, wanted).run(forwards)
            comm.check_idle()
            right = [torch.equal(r, f.value) and r.dtype == f.dtype for r, f in zip(results, forwards, strict=False)]
            found[f"{wanted}-{count}"] = {"ran": seen, "right": right, "bytes": comm.bytes_sent - before}
    return found


def tiles(rank: int, world: int, folder: Path) -> dict[str, Any]:
    """By VAE and size: whether the pixels of tiles decoded on all ranks are those of one rank, bit by bit."""
    from tests import vaes  # diffusers is slow to import: not for who only asks what the ranks saw

    comm = communicator(world)
    found: dict[str, Any] = {}
    for name in VAES:
        vae = vaes.make(name)
        for size in SIZES:
            z = vae.latents(*size)
            alone = vae.tiled(z)
            for wanted in ("all", "first"):
                spread = vae.tiled(z, TileRunner(Spread(comm, wanted)).run)
                found[f"{name}-{size[0]}x{size[1]}-{wanted}"] = None if spread is None else torch.equal(alone, spread)
    return found


def fails(rank: int, world: int, folder: Path) -> dict[str, Any]:
    """A forward of rank 1 raises in the second turn; what is said there, and on rank 0."""
    spread = Spread(communicator(world, SHORT_DEADLINE_S))

    def run() -> None:
        spread.run([Number(0, []), Number(1, []), Number(2, []), Failing(3, [])])

    begin = time.monotonic()
    first = said(PeerLost if rank == 0 else ArithmeticError, run)
    found = {"said": first, "after_s": time.monotonic() - begin, "again": said(ExchangeMisused, run)}
    while rank == 1 and not list(folder.glob("0.*")) and time.monotonic() < begin + LONGEST_S:
        time.sleep(0.05)  # it is there, and silent
    return found


class Failing(Number):
    def call(self) -> torch.Tensor:
        raise ArithmeticError("this one cannot be computed")


ranks.WHAT |= {"shares": shares, "tiles": tiles, "fails": fails}
WORLDS = (("shares", 2), ("shares", 3), ("tiles", 2), ("fails", 2))

if __name__ == "__main__":
    importlib.import_module("tests.vaes")  # once for all ranks
    assert len(os.listdir("/proc/self/task")) == 1, "forked with threads running"
    for what, size in WORLDS:
        (folder := Path(sys.argv[1]) / f"{what}-{size}").mkdir()
        ranks.run(what, size, folder)
