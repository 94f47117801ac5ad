"""Ranks that are left when everyone who can be stepped is: where do they buy most? Pure."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from itertools import count

from raydiance.serve.engine.policies.draft import Batch, Draft
from raydiance.serve.engine.policies.needs import Need


@dataclass(frozen=True, slots=True)
class _Move:
    """A batch on twice its ranks, or halved with the other half on as many more: both take `degree` ranks."""

    is_split: bool
    seconds: float
    bought_per_gpu_s: float


def spend(draft: Draft) -> None:
    """Gives the ranks that are left where they buy most time for deadlines per GPU-second; then to those without."""
    if draft.room.num_free == 0:
        return
    turns = count()
    moves: list[tuple[bool, float, int, Batch]] = []

    def offer(batch: Batch) -> None:
        move = _best(draft, batch)
        if move is not None:
            heapq.heappush(moves, (not batch.is_kept, -move.bought_per_gpu_s, next(turns), batch))

    for batch in draft.batches:
        offer(batch)
    while moves and draft.room.num_free:
        batch = heapq.heappop(moves)[-1]
        move = _best(draft, batch)  # there may be less room by now
        if move is None:
            continue
        if move.is_split:
            offer(_split(draft, batch, move.seconds))
        else:
            draft.room.double(batch.degree)
            batch.degree, batch.seconds = 2 * batch.degree, move.seconds
        offer(batch)


def _best(draft: Draft, batch: Batch) -> _Move | None:
    """What ends its step soonest; None where nothing does, or there is no room."""
    degree, num_rows = batch.degree, len(batch.needs)
    if draft.room.num_free < degree or not all(draft.may_take(need, degree) for need in batch.needs):
        return None
    found = []
    if num_rows > 1 and draft.room.fits(degree):
        found.append((_halved_s(draft, batch), True))
    if draft.room.doubles(degree):
        double = draft.steps.seconds(batch.num_tokens, num_rows, batch.num_branches, 2 * degree)
        found.append((double, False))
    faster = [(seconds, is_split) for seconds, is_split in found if seconds is not None and seconds < batch.seconds]
    if not faster:
        return None
    seconds, is_split = min(faster)
    more = degree * (2 * seconds - batch.seconds)
    bought = num_rows * (batch.seconds - seconds)
    return _Move(is_split, seconds, bought / more if more > 0 else math.inf)


def _halves(batch: Batch) -> tuple[list[Need], list[Need]]:
    middle = (len(batch.needs) + 1) // 2
    return batch.needs[:middle], batch.needs[middle:]


def _shape(needs: list[Need]) -> tuple[int, int]:
    """Tokens and branches of a batch of these."""
    return max(need.kind.num_tokens for need in needs), max(need.kind.num_branches for need in needs)


def _halved_s(draft: Draft, batch: Batch) -> float | None:
    """Of the longer half's step; None where a half, by its own shape, has no layout of so many ranks."""
    longest = 0.0
    for half in _halves(batch):
        tokens, branches = _shape(half)
        seconds = draft.steps.seconds(tokens, len(half), branches, batch.degree)
        if seconds is None:
            return None
        longest = max(longest, seconds)
    return longest


def _split(draft: Draft, batch: Batch, seconds: float) -> Batch:
    """Its latter half, on ranks of its own."""
    batch.needs, latter = _halves(batch)
    batch.seconds = seconds
    batch.num_tokens, batch.num_branches = _shape(batch.needs)
    batch.sum_tokens = sum(need.kind.num_tokens for need in batch.needs)
    pace_s = min(need.pace_s for need in latter)
    tokens = sum(need.kind.num_tokens for need in latter)
    draft.room.take(batch.degree)
    other = Batch(latter, batch.degree, seconds, *_shape(latter), tokens, pace_s)
    draft.batches.append(other)
    return other
