"""What the simple policies have in common: an order, a degree for each, and batches of those who get no ranks."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable

from raydiance.serve.engine.policies.base import Reason
from raydiance.serve.engine.policies.draft import Draft
from raydiance.serve.engine.policies.needs import Need


def fill(draft: Draft, queue: Iterable[Need]) -> None:
    """Each gets its degree, or what there is room for below it; the rest join the smallest batch of their key."""
    left = [need for need in queue if not _start(draft, need)]
    of_key: dict[Hashable, list[tuple[int, int]]] = {}
    for i, batch in enumerate(draft.batches):
        of_key.setdefault(batch.needs[0].kind.key, []).append((len(batch.needs), i))
    for need in left:
        batches = of_key.get(need.kind.key)
        if batches:
            batch = draft.batches[batches[0][1]]
            seconds = draft.with_one_more(need, batch)
            if seconds is not None:
                draft.join(need, batch, seconds)
                heapq.heapreplace(batches, (len(batch.needs), batches[0][1]))
                continue
        draft.wait(need)


def _start(draft: Draft, need: Need) -> bool:
    if not draft.room.num_free:
        return False
    fitting = [degree for degree in need.kind.alone if degree <= need.degree and draft.room.fits(degree)]
    return bool(fitting) and draft.start(need, fitting[-1])


def is_aged(need: Need, now: float, patience_s: float) -> bool:
    """Marks what has waited for so long."""
    if now - need.candidate.since < patience_s:
        return False
    need.reason = Reason.AGED
    return True
