"""Worlds of gloo ranks that decode together: `python -m tests.serve.stages.decoder_world FOLDER` runs them in turn.

What Ray carries between processes goes over pipes here. What is decoded is no picture: a row of latents is a tile, and
its double are its pixels. A spec's prompt says what goes wrong, and on which rank.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tests.parallel import rank as ranks
from tests.parallel.rank import DEADLINE_S, SHORT_DEADLINE_S

from raydiance.models.spec import Spec
from raydiance.models.tiles import TileRunner
from raydiance.models.tokens import Forward
from raydiance.parallel.comm import Communicator
from raydiance.parallel.spread import Spread
from raydiance.serve.engine.fleet import RanksLost
from raydiance.serve.stages.decoder_ranks import DecoderRanks
from raydiance.serve.stages.decoder_share import Share, SharedTiles, decode_share

SPEC = Spec("m", "text-to-image", "well", 32, 32, 1, 4, 1.0, 0)
LATENTS = torch.arange(20.0).view(5, 4)
TALLEST_WHOLE = 2
MAX_WORLD = 3
ENDS: list[Any] = []
"""Of a pipe to each rank after the first: (the first rank's, its own). Made anew for a world, before it is forked."""


class Doubles:
    """Of a family what a decoder uses."""

    tokens: Any = None

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    def decode(self, latents: torch.Tensor, spec: Spec) -> Iterator[np.ndarray]:
        """All rows in a chunk of tiles, or a row a chunk where they are few."""
        if len(latents) <= TALLEST_WHOLE or spec.prompt == f"whole on {self.rank}":
            for row in latents:
                yield 2 * row.numpy()
            return
        if spec.prompt == f"raises before tiles on {self.rank}":
            raise ArithmeticError("no decoding can be begun")
        if made := self.tokens.run([Forward(self._tile(row, spec), (4,), row.dtype, row.device) for row in latents]):
            yield torch.stack(made).numpy()

    def _tile(self, row: torch.Tensor, spec: Spec) -> Any:
        def call() -> torch.Tensor:
            if spec.prompt == f"raises on {self.rank}" and row[0] >= 8:
                raise ArithmeticError(f"row {row.tolist()} cannot be decoded")
            if spec.prompt == f"stops on {self.rank}":
                os.kill(os.getpid(), signal.SIGSTOP)
            return 2 * row

        return call


def obey(rank: int, spread: Spread) -> dict[str, Any]:
    """What a rank after the first does, until it is told None."""
    family, tiles, pipe = Doubles(rank), SharedTiles(spread), ENDS[rank - 1][1]
    family.set_tokens(TileRunner(tiles, small=True))
    orders = 0
    while (order := pipe.recv()) is not None:
        orders += 1
        try:
            pipe.send(decode_share(family, tiles, torch.from_numpy(order[0]), order[1]))  # type: ignore[arg-type]
        except (ArithmeticError, RuntimeError) as error:
            pipe.send(error)
    return {"orders": orders}


class Led:
    """The first rank, and what it was told of lost ones."""

    def __init__(self, world: int, spread: Spread, deadline_s: float) -> None:
        self.pipes = [ENDS[i][0] for i in range(world - 1)]
        self.lost: list[str] = []
        options: dict[str, Any] = {"small": True, "deadline_s": deadline_s, "lost": self.lose}
        self.ranks = DecoderRanks(Doubles(0), spread, self.ask, **options)  # type: ignore[arg-type]

    def lose(self, error: RanksLost) -> None:
        self.lost.append(f"{type(error.__cause__).__name__}: {error}")

    def ask(self, latents: torch.Tensor, spec: Spec) -> Future[list[Share]]:
        for pipe in self.pipes:
            pipe.send((latents.numpy(), spec))
        answered: Future[list[Share]] = Future()
        threading.Thread(target=self.answer, args=(answered,), daemon=True).start()  # one that is stopped never ends
        return answered

    def answer(self, answered: Future[list[Share]]) -> None:
        shares = [pipe.recv() for pipe in self.pipes]
        errors = [share for share in shares if isinstance(share, Exception)]
        if errors:
            answered.set_exception(errors[0])
        else:
            answered.set_result(shares)

    def decode(self, latents: torch.Tensor = LATENTS, prompt: str = "well") -> str:
        """Whether the pixels are right, or what was raised."""
        try:
            chunks = list(self.ranks.decode(latents, replace(SPEC, prompt=prompt)))
        except Exception as error:  # noqa: BLE001 - it is shown
            return f"{type(error).__name__}: {error}"
        return "right" if np.array_equal(np.concatenate([c.reshape(-1, 4) for c in chunks]), 2 * latents) else "wrong"

    def end(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)


def well(rank: int, world: int, spread: Spread) -> dict[str, Any]:
    if rank:
        return obey(rank, spread)
    led = Led(world, spread, DEADLINE_S)
    said = {
        "whole": led.decode(LATENTS[:TALLEST_WHOLE]),
        "tiled": led.decode(),
        "tiles": list(led.ranks.num_tiles),
        "raises before tiles": led.decode(prompt="raises before tiles on 0"),
    }
    whole, tiled = (led.ranks.decode(x, SPEC) for x in (LATENTS[:TALLEST_WHOLE], LATENTS))
    turns = [next(whole), next(tiled), next(whole), next(tiled, None), next(whole, None)]
    rows = [LATENTS[0], LATENTS, LATENTS[1]]
    said["in turn"] = [np.array_equal(t, 2 * row) for t, row in zip(turns, rows, strict=False)] + turns[3:]
    for failing in range(world):
        said[f"raises on {failing}"] = led.decode(prompt=f"raises on {failing}")
        said[f"after {failing}"] = led.decode()
    led.end()
    return said | {"lost": led.lost}


def lost(prompt: str, rank: int, world: int, spread: Spread) -> dict[str, Any]:
    if rank:
        return obey(rank, spread)
    led = Led(world, spread, SHORT_DEADLINE_S)
    began = time.monotonic()
    found = {"said": led.decode(prompt=prompt), "after_s": time.monotonic() - began, "lost": list(led.lost)}
    found |= {"again": led.decode()}
    led.end()
    return found


def world_of(what: Any, deadline_s: float) -> Any:
    def run(rank: int, world: int, folder: Path) -> dict[str, Any]:
        comm = Communicator(range(world), dist.new_group(list(range(world))), deadline_s)
        found: dict[str, Any] = what(rank, world, Spread(comm, wanted="first"))
        return found

    return run


FAULTS = {name: f"{name} on 1" for name in ("raises before tiles", "whole", "stops")}
ranks.WHAT |= {"well": world_of(well, DEADLINE_S)}
ranks.WHAT |= {
    name: world_of(lambda *args, prompt=prompt: lost(prompt, *args), SHORT_DEADLINE_S)
    for name, prompt in FAULTS.items()
}
ranks.LOST = (*ranks.LOST, "stops")  # type: ignore[assignment] - it is killed when the first has ended
WORLDS = (("well", 2), ("well", MAX_WORLD), *((name, 2) for name in FAULTS))

if __name__ == "__main__":
    assert len(os.listdir("/proc/self/task")) == 1, "forked with threads running"
    for what, size in WORLDS:
        ENDS[:] = [multiprocessing.Pipe() for _ in range(size - 1)]
        (folder := Path(sys.argv[1]) / f"{what}-{size}").mkdir()
        ranks.run(what, size, folder)
