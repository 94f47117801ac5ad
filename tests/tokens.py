"""Stand-ins for what is outside of a family and is handed its tokens.

`Recorder` holds all of them and checks what it is asked. `Rank` holds a part: several run at once, as threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from raydiance.models.tokens import WHOLE, Forward, Projection, Streams, run_in_turn


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)


@dataclass
class Seen:
    """Of one forward. Args: attended: queries and keys."""

    lengths: dict[str, int]
    cut: set[str] = field(default_factory=set)
    attended: list[tuple[Streams, Streams | None]] = field(default_factory=list)
    joined: set[str] = field(default_factory=set)

    def total(self, streams: Sequence[str]) -> int:
        return sum(self.lengths[stream] for stream in streams)


class Recorder:
    def __init__(self, concurrency: int = 1) -> None:
        self.concurrency = concurrency
        self.forwards: list[Seen] = []
        self.results: list[torch.Tensor] = []

    def begin(self, **lengths: int) -> None:
        self.forwards.append(Seen(lengths))

    def cut(self, x: torch.Tensor, dim: int, *streams: str) -> torch.Tensor:
        seen = self.forwards[-1]
        assert x.shape[dim] == seen.total(streams)
        assert not seen.joined
        seen.cut |= set(streams)
        return x

    def join(self, x: torch.Tensor, dim: int, *streams: str) -> torch.Tensor:
        seen = self.forwards[-1]
        assert x.shape[dim] == seen.total(streams)
        assert seen.cut - seen.joined >= set(streams)
        seen.joined |= set(streams)
        return x

    def attend(
        self, q: Projection, k: Projection, v: Projection, queries: Streams, keys: Streams | None = None
    ) -> torch.Tensor:
        seen = self.forwards[-1]
        assert seen.cut >= {*queries, *(keys or ())}
        assert not seen.joined
        value, key, query = v(), k(), q()
        assert query.shape[1] == seen.total(queries)
        assert value.shape == key.shape
        if keys != WHOLE:
            assert key.shape[1] == seen.total(keys or queries)
        seen.attended.append((queries, keys))
        return attention(query, key, value)

    def run(self, forwards: Sequence[Forward]) -> list[torch.Tensor]:
        results = run_in_turn(forwards)
        for forward, made in zip(forwards, results, strict=True):
            assert (made.shape, made.dtype, made.device) == (forward.shape, forward.dtype, forward.device)
        self.results += results
        return results


class Board:
    """Where ranks, each a thread, meet."""

    def __init__(self, num_ranks: int) -> None:
        self.barrier = threading.Barrier(num_ranks, timeout=60)
        self.slots: list[Any] = [None] * num_ranks

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """What all ranks have put there."""
        self.slots[rank] = value
        self.barrier.wait()
        values = list(self.slots)
        self.barrier.wait()
        return values


Share = Callable[[str, int], Sequence[int]]
"""A stream and its length -> how many of its tokens each rank holds."""


class Rank:
    concurrency = 1

    def __init__(self, board: Board, rank: int, share: Share) -> None:
        self.board = board
        self.rank = rank
        self.share = share
        self.held: dict[str, Sequence[int]] = {}
        self.results: list[torch.Tensor] = []

    def begin(self, **lengths: int) -> None:
        self.held = {stream: self.share(stream, length) for stream, length in lengths.items()}

    def cut(self, x: torch.Tensor, dim: int, *streams: str) -> torch.Tensor:
        parts = x.split([sum(self.held[stream]) for stream in streams], dim)
        mine = [part.split(list(self.held[s]), dim)[self.rank] for s, part in zip(streams, parts, strict=True)]
        return torch.cat(mine, dim)

    def join(self, x: torch.Tensor, dim: int, *streams: str) -> torch.Tensor:
        by_rank = [
            part.split([self.held[stream][rank] for stream in streams], dim)
            for rank, part in enumerate(self.board.exchange(self.rank, x))
        ]
        return torch.cat([by_rank[rank][i] for i in range(len(streams)) for rank in range(len(by_rank))], dim)

    def attend(
        self, q: Projection, k: Projection, v: Projection, queries: Streams, keys: Streams | None = None
    ) -> torch.Tensor:
        value, key = v(), k()
        query = q()
        assert query.shape[1] == sum(self.held[stream][self.rank] for stream in queries)
        if keys != WHOLE:
            everyone = self.board.exchange(self.rank, (key, value))
            key, value = (torch.cat(parts, dim=1) for parts in zip(*everyone, strict=True))
            assert key.shape[1] == sum(sum(self.held[stream]) for stream in keys or queries)
        return attention(query, key, value)

    def run(self, forwards: Sequence[Forward]) -> list[torch.Tensor]:
        results = run_in_turn(forwards)
        self.results += results
        return results
