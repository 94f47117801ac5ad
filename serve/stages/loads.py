"""What this process has given to each replica and not had back: seconds of work, by the replica's id.

A router's class is sent to where it routes as a value, and its module's globals are copies there: what it shares with
the dispatcher in the same process is here, and imported when it is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

MOVE_S = 1.0
"""A state goes on where it was, unless another replica has so much less to do."""
_seconds: defaultdict[str, float] = defaultdict(float)


@contextmanager
def held(replica_id: str, seconds: float) -> Iterator[None]:
    """A replica has so much more to do meanwhile."""
    _seconds[replica_id] += seconds
    try:
        yield
    finally:
        _seconds[replica_id] -= seconds
        if _seconds[replica_id] <= 1e-9:  # rounding
            del _seconds[replica_id]


def of(replica_id: str) -> float:
    return _seconds.get(replica_id, 0.0)


def in_order(replica_ids: list[str], last: str | None) -> list[str]:
    """The one with the least to do first; `last`, where the state was, has a lead of `MOVE_S`."""
    return sorted(replica_ids, key=lambda each: (of(each) - (MOVE_S if each == last else 0.0), each))
