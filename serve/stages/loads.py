"""Which replicas there are, and what this process has given to each and not had back: seconds of work, by its id.

A router's class is sent to where it routes as a value, and its module's globals are copies there: what it shares with
the dispatcher in the same process is here, and imported when it is needed.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

MOVE_S = 1.0
"""A state goes on where it was, unless another replica has so much less to do."""
MAX_HOMES = 1024
Group = tuple[str, str]
"""Of which tenant, and its id."""
_seconds: defaultdict[str, float] = defaultdict(float)
_homes: OrderedDict[Group, str] = OrderedDict()
_live: frozenset[str] | None = None
_lost: set[str] = set()
_watchers: list[Callable[[], None]] = []


def set_live(replica_ids: Iterable[str]) -> None:
    """The replicas that take work now, one that drains not among them. Called in the router's thread."""
    global _live
    _live = frozenset(replica_ids)
    _lost.intersection_update(_live)
    for changed in _watchers:
        changed()


def live() -> frozenset[str] | None:
    """None before a router has told: there may be none, as in tests without Ray."""
    return _live


def watch(changed: Callable[[], None]) -> None:
    """Has it called whenever replicas come or go, in the router's thread."""
    _watchers.append(changed)


def lose(replica_id: str) -> None:
    """It has died: nothing more goes to it, though it has the least to do, and its router does not know yet."""
    _lost.add(replica_id)


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


def home_of(group: Group | None) -> str | None:
    """The replica that had the last sample of a group."""
    return None if group is None else _homes.get(group)


def settle(group: Group | None, replica_id: str) -> None:
    """A sample of the group goes to a replica. Of many groups those that were used longest ago are forgotten."""
    if group is not None:
        _homes[group] = replica_id
        _homes.move_to_end(group)
        while len(_homes) > MAX_HOMES:
            _homes.popitem(last=False)


def in_order(replica_ids: list[str], last: str | None, near: str | None = None) -> list[str]:
    """Of those that live, the one with the least to do first; `last`, where the state was, has a lead of `MOVE_S`; of
    those with as much to do, `near`, where its group is, comes first."""
    living = [each for each in replica_ids if each not in _lost]
    return sorted(living, key=lambda each: (of(each) - (MOVE_S if each == last else 0.0), each != near, each))
