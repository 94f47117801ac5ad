"""Streams of tokens dealt out over ranks, and over the parts of each rank's share. Pure arithmetic.

Every stream is dealt out by itself, so that a rank holds a shard of the text and one of the image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from raydiance.parallel.shards import shard, spans


@dataclass(frozen=True)
class Dealing:
    """Args:
    lengths: of each stream, in all.
    num_ranks: that share the sequence.
    num_parts: of each rank's tokens, where they are lanes of one forward.
    """

    lengths: Mapping[str, int]
    num_ranks: int
    num_parts: int = 1

    def held(self, streams: Sequence[str], part: int = 0) -> list[int]:
        """How many tokens of all these streams each rank has, in one of its parts."""
        return [
            sum(self._span(s, rank, part).stop - self._span(s, rank, part).start for s in streams)
            for rank in self._ranks
        ]

    def cut(self, x: torch.Tensor, dim: int, streams: Sequence[str], rank: int, part: int = 0) -> torch.Tensor:
        """What a rank has in one part, of all tokens of the streams along `dim`: a view where it is one stream.

        Raises ValueError where there are not as many.
        """
        lengths = [self.lengths[stream] for stream in streams]
        if x.shape[dim] != sum(lengths):
            whole = ", ".join(f"{n} of {stream}" for stream, n in zip(streams, lengths, strict=True))
            raise ValueError(f"{x.shape[dim]} tokens along dim {dim} of {list(x.shape)} are not {whole}")
        parts = []
        for stream, tokens in zip(streams, x.split(lengths, dim), strict=True):
            own = self._span(stream, rank, part)
            parts.append(tokens.narrow(dim, own.start, own.stop - own.start))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim)

    def join(self, held: Sequence[Sequence[torch.Tensor]], streams: Sequence[str]) -> torch.Tensor:
        """All tokens of the streams along dim 0.

        Args:
            held: [part][rank], what each holds along dim 0, stream after stream.
        """
        cut = [
            [
                tokens.split([self._span(s, rank, part).stop - self._span(s, rank, part).start for s in streams])
                for rank, tokens in enumerate(by_rank)
            ]
            for part, by_rank in enumerate(held)
        ]
        return torch.cat(
            [cut[part][rank][i] for i in range(len(streams)) for rank in self._ranks for part in range(len(held))]
        )

    @property
    def _ranks(self) -> range:
        return range(self.num_ranks)

    def _span(self, stream: str, rank: int, part: int) -> slice:
        """Of a stream's tokens. The last ranks have one more of every second stream, so that the sums stay even."""
        dealt = shard(self.lengths[stream], self.num_ranks)
        if list(self.lengths).index(stream) % 2:
            dealt = dealt[::-1]
        mine = spans(dealt)[rank]
        own = spans(shard(mine.stop - mine.start, self.num_parts))[part]
        return slice(mine.start + own.start, mine.start + own.stop)
