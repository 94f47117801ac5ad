"""What one rank of a replica is told and what it finds, and what one rank alone finds with diffusers' own attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from tests.parallel.family_runs import Way
from tests.parallel.family_subjects import Subject
from tests.tokens import Recorder

from raydiance.kernels.attention import attention
from raydiance.models.family import Family
from raydiance.models.tokens import Projection, Streams
from raydiance.parallel.groups import Groups
from raydiance.parallel.tokens import ShardedTokens
from raydiance.serve.engine.engine import Engine
from raydiance.serve.engine.orders import Move, Report, Start, Turn
from raydiance.serve.engine.rank import Rank


@dataclass(frozen=True)
class Known:
    """A request, and what one rank makes of it.

    Args:
        lengths: of the streams of tokens.
        latents: after each step.
        result: for the decoder.
    """

    start: Start
    lengths: Mapping[str, int]
    latents: Sequence[torch.Tensor]
    result: torch.Tensor


def known(subject: Subject) -> Known:
    studio, recorder, latents = subject.model.studio, Recorder(), []
    trajectory, engine = studio.start(subject.case), studio.engine()
    studio.denoiser.set_tokens(recorder)
    engine.step([trajectory])
    studio.denoiser.set_tokens(None)
    while not trajectory.is_done:
        [trajectory] = engine.step([trajectory])
        latents.append(trajectory.latents)
    order = studio.order(subject.case, subject.id)
    return Known(order, recorder.forwards[0].lengths, latents, engine.finish(trajectory))


class Replica:
    """One rank of it. Every rank is told alike what all step, and so knows who has which state, as a replica's
    coordinator does."""

    def __init__(self, groups: Groups, rank: int, tokens: ShardedTokens, family: Family) -> None:
        family.set_tokens(tokens)
        self.rank = Rank(Engine(family), rank, groups, tokens)
        self.groups = groups
        self.tokens = tokens
        self.num_moves = 0
        self._holders: dict[str, frozenset[int]] = {}

    def begin(self, start: Start) -> None:
        self.rank.begin(start)
        self._holders[start.id] = frozenset(range(dist.get_world_size()))

    def step(self, way: Way, batches: Sequence[Sequence[str]]) -> Report | None:
        """This rank's part; a report from the first of those that take part."""
        members = frozenset(way.mesh.subgroup.ranks)
        for name in (name for batch in batches for name in batch):
            held = self._holders[name]
            if missing := members - held:
                self._move(Move(name, min(held & members or held), tuple(sorted(missing))))
            self._holders[name] = members
        turn = Turn(tuple(map(tuple, batches)), way.mesh, way.schedule)
        return self.rank.turn(turn) if self.rank.rank in members else None

    def latents(self, name: str) -> torch.Tensor:
        return self.rank._held[name].latents

    def _move(self, move: Move) -> None:
        self.num_moves += 1
        if self.rank.rank in (move.sender, *move.receivers):
            self.rank.move(move)


class Deaf(ShardedTokens):
    """Ranks that attend to what they hold and to nothing else."""

    def attend(
        self, q: Projection, k: Projection, v: Projection, queries: Streams, keys: Streams | None = None
    ) -> torch.Tensor:
        del queries, keys
        value, key = v(), k()
        return attention(q(), key, value)[0]


def stepped(replica: Replica, ways: Sequence[Way], batches: Sequence[Sequence[Known]]) -> dict[str, Any]:
    """Requests, of as many steps as there are ways: the largest error after each step and of the result, and what it
    took. None where this rank had no part."""
    each = [one for batch in batches for one in batch]
    ids = [[one.start.id for one in batch] for batch in batches]
    groups, lanes = replica.groups, replica.tokens.lanes
    for one in each:
        replica.begin(one.start)
    sent, switches, moves = groups.bytes_sent, lanes.num_switches, replica.num_moves
    errors, result = [], None
    with counted(replica.rank.family) as calls:
        for step, way in enumerate(ways):
            report = replica.step(way, ids)
            takes_part = replica.rank.rank in way.mesh.subgroup.ranks
            found = [distance(replica.latents(one.start.id), one.latents[step]) for one in each]
            errors.append(max(found) if takes_part else None)
            if report is not None and step + 1 == len(ways):
                result = max(distance(report.outcomes[one.start.id].result, one.result) for one in each)
    return {
        "errors": errors,
        "result": result,
        "calls": calls(),
        "bytes": groups.bytes_sent - sent,
        "switches": lanes.num_switches - switches,
        "moves": replica.num_moves - moves,
    }


@contextmanager
def counted(family: Family) -> Iterator[Callable[[], int]]:
    """How often a transformer of it has run since."""
    calls: list[int] = []
    parts: Mapping[str, Any] = family.pipeline.components
    transformers = [part for name, part in parts.items() if name.startswith("transformer") and part is not None]
    hooks = [transformer.register_forward_hook(lambda *_: calls.append(1)) for transformer in transformers]
    try:
        yield lambda: len(calls)
    finally:
        for hook in hooks:
            hook.remove()


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest; infinite where something is not a number, or not of the same shape."""
    error = (a - b).abs().max().item() if a.shape == b.shape else float("inf")
    return error if error == error else float("inf")
