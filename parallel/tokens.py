"""A family's tokens, dealt out over ranks: a `raydiance.models.tokens.Tokens` for any layout and schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from raydiance.parallel.comm import Communicator
from raydiance.parallel.dealing import Dealing
from raydiance.parallel.errors import LaneLost
from raydiance.parallel.groups import Groups, Link
from raydiance.parallel.hybrid import strategy
from raydiance.parallel.lanes import Lanes
from raydiance.parallel.mesh import Layout, Mesh, Subgroup
from raydiance.parallel.parts import Layer
from raydiance.parallel.schedule import SCHEDULES, Schedule
from raydiance.parallel.spread import Forward, Spread
from raydiance.parallel.ulysses import Local, Projection

Streams = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Run:
    """A forward that is run in another way."""

    call: Callable[[], torch.Tensor]
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(slots=True)
class _UnderWay:
    """A forward in its lane, or a part of one. Args: num_met: attentions and joins so far."""

    dealing: Dealing
    num_met: int = 0


class ShardedTokens:
    """One rank's. `use` chooses the layout before each step; nothing is made or exchanged for it.

    Args:
    groups: None for a world of one rank.
    local: one rank's attention; it is asked for the log-sum-exp where there is a ring.
    """

    def __init__(
        self, groups: Groups | None, rank: int, local: Callable[..., tuple[torch.Tensor, torch.Tensor | None]]
    ):
        self.lanes = Lanes() if groups is None else groups.lanes
        self._groups = groups
        self._rank = rank
        self._attention = local
        self._under_way: dict[int, _UnderWay] = {}
        self._layers: dict[int, Layer] = {}
        self._boards: dict[int, dict[int, list[torch.Tensor]]] = {}
        self.use(Mesh(Subgroup(rank, 1), Layout()))

    def use(self, mesh: Mesh, schedule: Schedule = SCHEDULES["synchronous"]) -> None:
        """Raises ValueError where a schedule means nothing to the layout, or the rank is not of the mesh."""
        if not schedule.fits(mesh.layout):
            raise ValueError(f"{schedule} means nothing to {mesh.layout}")
        self.mesh, self.schedule = mesh, schedule
        self._ranks = mesh.sequence(self._rank)
        self._index = self._ranks.index(self._rank)

    @property
    def concurrency(self) -> int:
        """How many independent forwards can be under way at once."""
        return max(self.mesh.layout.cfg, 2 if self.schedule.lanes else 1)

    def begin(self, **lengths: int) -> None:
        """A forward begins, whose streams have so many tokens in all. Raises ValueError where a rank has none."""
        num_parts = self.schedule.parts
        dealing = Dealing(lengths, len(self._ranks), num_parts)
        for part in range(num_parts):
            if not min(dealing.held(tuple(lengths), part)):
                raise ValueError(f"{lengths} tokens over {len(self._ranks)} ranks leave one without any")
        self._under_way[self.lanes.index] = _UnderWay(dealing)

    def cut(self, x: torch.Tensor, dim: int, *streams: str) -> torch.Tensor:
        """This rank's tokens of the streams, of all of them along `dim`. Raises ValueError for another number."""
        return self._forward.dealing.cut(x, dim, streams, self._index, self._part)

    def join(self, x: torch.Tensor, dim: int, *streams: str) -> torch.Tensor:
        """All tokens of the streams along `dim`, on every rank, of what each holds."""
        if self.mesh.layout.sequence == 1:
            return x
        dealing = self._forward.dealing
        mine = x.movedim(dim, 0).contiguous()
        held = [mine.new_empty(n, *mine.shape[1:]) for n in dealing.held(streams, self._part)]
        self._comm(self._ranks).all_to_all([mine] * len(held), held).wait()
        return dealing.join(self._of_all_parts(held), streams).movedim(0, dim)

    def attend(
        self, q: Projection, k: Projection, v: Projection, queries: Streams, keys: Streams | None = None
    ) -> torch.Tensor:
        """What this rank's tokens of `queries` find in all `keys`, [B, L_local, H, D]; keys of no stream are whole."""
        if keys == () or self.mesh.layout.sequence == 1:
            value, key = v(), k()
            return self._local(q(), key, value)[0]
        keys = queries if keys is None else keys
        if self.schedule.parts > 1:
            return self._layer(queries, keys).attend(q, k, v, self._part)
        held = self._forward.dealing.held
        attend = strategy(self._groups, self.mesh, self._rank, self._local, held(queries), self.schedule, held(keys))
        return attend(q, k, v)

    def run(self, forwards: Sequence[Forward]) -> list[torch.Tensor]:
        """What each returns, in their order, on every rank: the cfg ranks take turns with them and tell each other."""
        if self.schedule.parts > 1:
            forwards = [_Run(partial(self._in_parts, f.call), f.shape, f.dtype, f.device) for f in forwards]
        if self.mesh.layout.cfg > 1:
            return Spread(self._comm(self.mesh.members(self._rank, "cfg")), closes=False).run(forwards)
        calls = [forward.call for forward in forwards]
        if not self.schedule.lanes or self.lanes.are_running:  # those that are running are two batches
            return [call() for call in calls]
        return [result for i in range(0, len(calls), 2) for result in self.lanes.run(calls[i : i + 2])]

    def _in_parts(self, call: Callable[[], torch.Tensor]) -> torch.Tensor:
        try:
            return self.lanes.run([call] * self.schedule.parts)[0]
        finally:
            self._layers.clear()
            self._boards.clear()

    @property
    def _forward(self) -> _UnderWay:
        return self._under_way[self.lanes.index]

    @property
    def _part(self) -> int:
        return self.lanes.index if self.schedule.parts > 1 else 0

    @property
    def _local(self) -> Local:
        with_lse = self.mesh.layout.ring > 1
        return lambda q, k, v: self._attention(q, k, v, with_lse=with_lse)

    def _comm(self, ranks: tuple[int, ...]) -> Communicator:
        return self._link(ranks).outgoing

    def _link(self, ranks: tuple[int, ...]) -> Link:
        if self._groups is None:
            raise ValueError(f"ranks {list(ranks)} need process groups")
        return self._groups.link(ranks, 0) if self.schedule.parts > 1 else self._groups[ranks]

    def _layer(self, queries: Streams, keys: Streams) -> Layer:
        """The one that all parts meet in: the first of them makes it, the last forgets it."""
        number, parts = self._next(), range(self.schedule.parts)
        if self._part == parts[-1]:
            return self._layers.pop(number)
        if number not in self._layers:
            held = self._forward.dealing.held
            lengths, key_lengths = ([held(streams, part) for part in parts] for streams in (queries, keys))
            link = self._link(self.mesh.members(self._rank, "ulysses"))
            self._layers[number] = Layer(link, self.lanes, self._local, lengths, key_lengths)
        return self._layers[number]

    def _of_all_parts(self, held: list[torch.Tensor]) -> list[list[torch.Tensor]]:
        """[part][rank]; one lane alone has one part."""
        if self.schedule.parts == 1:
            return [held]
        board = self._boards.setdefault(self._next(), {})
        board[self._part] = held
        while len(board) < self.schedule.parts:
            if self.lanes.num_running < self.schedule.parts:
                raise LaneLost("another part has ended and joined nothing")
            self.lanes.switch()
        return [board[part] for part in range(self.schedule.parts)]

    def _next(self) -> int:
        """The number of this meeting of the parts: all count alike."""
        self._forward.num_met += 1
        return self._forward.num_met
