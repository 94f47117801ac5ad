"""A VAE decoder over several ranks: this process is the first of them, and the only one that gets frames.

What is not decoded in tiles is decoded here alone. With the first tiles of anything else, the others are given the same
latents, one call each; after that ranks talk to each other alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import numpy as np
import torch

from raydiance.models.family import Family
from raydiance.models.spec import Spec
from raydiance.models.tiles import TileRunner
from raydiance.models.tokens import Forward
from raydiance.parallel.spread import Spread
from raydiance.serve.engine.fleet import RanksLost
from raydiance.serve.errors import GenerationFailed
from raydiance.serve.stages.decoder_share import Share, SharedTiles

Ask = Callable[[torch.Tensor, Spec], "Future[list[Share]]"]
"""Tells the other ranks what to decode. Their shares, by rank from 1, or what the first that is out of step raised."""


class DecoderRanks:
    """Every method is called from one thread.

    Args:
        family: a decoder; it hands its tiles to this from now on.
        spread: among all ranks, with the results wanted here.
        small: see `TileRunner`.
        deadline_s: how much later than this rank another may be.
        lost: called, in any thread, when a rank is gone, late or out of step. None of them can be used any more.

    Attributes:
        num_tiles: decoded so far, by rank.
    """

    def __init__(
        self,
        family: Family,
        spread: Spread,
        ask: Ask,
        *,
        small: bool,
        deadline_s: float,
        lost: Callable[[RanksLost], None],
    ) -> None:
        self.concurrency = spread.concurrency
        self.num_tiles = [0] * spread.concurrency
        self._family = family
        self._tiles = SharedTiles(spread)
        self._ask = ask
        self._deadline_s = deadline_s
        self._lost = lost
        self._given: tuple[torch.Tensor, Spec] | None = None
        family.set_tokens(TileRunner(self, small=small))

    def decode(self, latents: torch.Tensor, spec: Spec) -> Iterator[np.ndarray]:
        """What the family's `decode` yields and raises. Several may be under way in turn.

        Raises GenerationFailed where another rank could not decode a tile.
        """
        chunks = self._family.decode(latents, spec)
        while True:
            self._given = latents, spec  # something else may have been decoded since the last chunk
            chunk = next(chunks, None)
            self._given = None
            if chunk is None:
                return
            yield chunk

    def run(self, forwards: Sequence[Forward]) -> list[torch.Tensor]:
        """What the family calls with the tiles of what is being decoded, all of them at once.

        Raises what `Spread.run` does, TimeoutError, or what another rank raised: after `lost` was told of it.
        """
        if self._given is None:
            raise RuntimeError("tiles come once in a decoding, and all together")
        (latents, spec), self._given = self._given, None
        try:
            asked = self._ask(latents, spec)
            asked.add_done_callback(self._check)
            made = self._tiles.run(forwards)
            shares = asked.result(self._deadline_s)
        except Exception as error:
            self._lose(error)
            raise
        num_tiles, failure = self._tiles.ended()
        shares = [Share(num_tiles), *shares]
        self.num_tiles = [have + share.num_tiles for have, share in zip(self.num_tiles, shares, strict=True)]
        if failure is not None:
            raise failure
        for rank, share in enumerate(shares):
            if share.failure is not None:
                raise GenerationFailed(f"rank {rank} of the VAE decoder could not decode a tile: {share.failure}")
        return made

    def _check(self, asked: Future[list[Share]]) -> None:
        """At once, because this rank waits for what is not sent."""
        if isinstance(error := asked.exception(), Exception):
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        said = str(error) or type(error).__name__
        lost = RanksLost(f"a rank of the VAE decoder is gone, late or out of step: {said}")
        lost.__cause__ = error
        self._lost(lost)
