"""Which trajectories step together next: a pure function. Knows no torch."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlanItem:
    """One trajectory, as the plan sees it.

    Args:
        key: items with equal keys can share a forward.
        num_tokens: of all its rows in the forward (two with classifier-free guidance).
    """

    key: Hashable
    num_tokens: int


def plan(
    items: Sequence[PlanItem], *, max_batch_size: float = math.inf, max_batch_tokens: float = math.inf
) -> list[list[int]]:
    """Batches of indices into `items`: each index once, in arrival order within its key.

    Args:
        max_batch_size: items in one batch.
        max_batch_tokens: tokens in one batch; an item that is larger goes alone.

    Raises:
        ValueError: `max_batch_size` is below 1.
    """
    if max_batch_size < 1:
        raise ValueError(f"max_batch_size={max_batch_size} must be at least 1")
    batches: list[list[int]] = []
    open_batches: dict[Hashable, tuple[list[int], int]] = {}
    for index, item in enumerate(items):
        batch, tokens = open_batches.get(item.key, ([], 0))
        if not batch or len(batch) >= max_batch_size or tokens + item.num_tokens > max_batch_tokens:
            batch, tokens = [], 0
            batches.append(batch)
        batch.append(index)
        open_batches[item.key] = (batch, tokens + item.num_tokens)
    return batches
