"""A rank's share of the tiles that several ranks decode together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from raydiance.models.family import Family
from raydiance.models.spec import Spec
from raydiance.models.tokens import Forward
from raydiance.parallel.spread import Spread


@dataclass(frozen=True, slots=True)
class Share:
    """What became of it. `failure`: what the decoding of a tile raised there, in words."""

    num_tiles: int
    failure: str | None = None


class SharedTiles:
    """Runs tiles on all ranks, and keeps them in step where one cannot be decoded: something else is sent in its place,
    and who asks for what became of the share is told. So one bad request, or one too large, ends no replica.

    Args:
        spread: with the results wanted on the first rank.
    """

    def __init__(self, spread: Spread) -> None:
        self.concurrency = spread.concurrency
        self._spread = spread
        self._num_tiles = 0
        self._failure: Exception | None = None

    def run(self, forwards: Sequence[Forward]) -> list[torch.Tensor]:
        """Raises what `Spread.run` does, but for what a forward raises. After it the ranks are out of step."""
        return self._spread.run([self._kept(forward) for forward in forwards])

    def ended(self) -> tuple[int, Exception | None]:
        """How many tiles were decoded here since it was asked last, and what was raised meanwhile, if anything was."""
        found = self._num_tiles, self._failure
        self._num_tiles, self._failure = 0, None
        return found

    def _kept(self, forward: Forward) -> Forward:
        def call() -> torch.Tensor:
            if self._failure is None:
                try:
                    made = forward.call()
                except Exception as error:  # noqa: BLE001 - it is told when the ranks have met
                    self._failure = error
                else:
                    self._num_tiles += 1
                    return made
            return torch.empty(forward.shape, dtype=forward.dtype, device=forward.device)

        return replace(forward, call=call)


def decode_share(family: Family, tiles: SharedTiles, latents: torch.Tensor, spec: Spec) -> Share:
    """The part of a rank that is not the first. Raises where it is out of step with the others afterwards."""
    if any(True for _ in family.decode(latents, spec)):
        raise RuntimeError(f"{spec.width}x{spec.height} was decoded in tiles by the first rank, and whole by this one")
    num_tiles, failure = tiles.ended()
    return Share(num_tiles, None if failure is None else f"{type(failure).__name__}: {failure}")
