"""What a coordinator makes of its ranks' answers, without Ray: which errors are a request's, and which the ranks'."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from raydiance.parallel.errors import PeerLost
from raydiance.parallel.mesh import Layout, Mesh, Subgroup
from raydiance.parallel.schedule import SCHEDULES
from raydiance.serve.engine.fleet import RanksLost
from raydiance.serve.engine.orders import Outcome, Report, Turn
from raydiance.serve.parallel_config import ParallelConfig
from raydiance.serve.stages import processes, rank_group
from raydiance.serve.stages.rank_group import RankGroup

LONGEST_S = 5.0


@dataclass(eq=False)
class Answer:
    """A call's, `after_s` from now. An error goes through Ray's own pickling."""

    value: Any = None
    after_s: float = 0.0

    def __post_init__(self) -> None:
        self.at = time.monotonic() + self.after_s

    def get(self) -> Any:
        left = self.at - time.monotonic()
        if left > LONGEST_S:
            raise AssertionError("waited for without a deadline")
        time.sleep(max(0.0, left))
        if isinstance(self.value, RayError):
            raise self.value
        if isinstance(self.value, Exception):
            error = RayError.from_bytes(RayTaskError("turn", repr(self.value), self.value).to_bytes())
            raise error.as_instanceof_cause() if isinstance(error, RayTaskError) else error
        return self.value


class Ray:
    """As much of it as is asked."""

    def get(self, refs: Any) -> Any:
        return refs.get()

    def wait(self, refs: Sequence[Answer], timeout: float) -> tuple[list[Answer], list[Answer]]:
        first = min(refs, key=lambda ref: ref.at)
        left = first.at - time.monotonic()
        time.sleep(max(0.0, min(left, timeout)))
        return ([], list(refs)) if left > timeout else ([first], [ref for ref in refs if ref is not first])


class Method:
    def __init__(self, answers: list[Answer]) -> None:
        self.answers = answers

    def remote(self, order: Any) -> Answer:
        return self.answers.pop(0)


class RankOf:
    """One that answers as it is told."""

    def __init__(self, turns: list[Answer], moves: list[Answer] | None = None) -> None:
        self.turn, self.move = Method(turns), Method(moves or [])


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> RankGroup:
    monkeypatch.setattr(rank_group, "ray", Ray())
    monkeypatch.setattr(processes, "ray", Ray())
    monkeypatch.setattr(rank_group, "GRACE_S", 0.2)
    made = object.__new__(RankGroup)
    made.size, made._parallel = 2, ParallelConfig(gpus=2, step_deadline_s=2.0)
    made._holders = dict.fromkeys("ab", frozenset(range(4)))
    return made


def turn(name: str, start: int = 0, size: int = 1) -> Turn:
    return Turn(((name,),), Mesh(Subgroup(start, size), Layout(ulysses=size)), SCHEDULES["synchronous"])


REPORT = Report({"b": Outcome(1)}, 0.1)


def test_one_that_fails_at_once_hurries_nobody_else(group: RankGroup) -> None:
    group._ranks = [RankOf([Answer(ValueError("bad"))]), RankOf([Answer(REPORT, after_s=0.6)])]
    bad, good = group.step([turn("a"), turn("b", start=1)])
    assert isinstance(bad, ValueError)
    assert good is REPORT


def test_each_that_fails_is_told_however_late(group: RankGroup) -> None:
    group._ranks = [RankOf([Answer(ValueError("bad"))]), RankOf([Answer(KeyError("late"), after_s=0.6)])]
    assert [type(e) for e in group.step([turn("a"), turn("b", start=1)])] == [ValueError, KeyError]


def test_one_that_hangs_beside_one_that_fails_is_lost_by_the_deadline(group: RankGroup) -> None:
    group._ranks = [RankOf([Answer(ValueError("bad"))]), RankOf([Answer(REPORT, after_s=60)])]
    with pytest.raises(RanksLost, match="1 of 2 ranks took longer than 2 s"):
        group.step([turn("a"), turn("b", start=1)])


def test_an_error_on_one_rank_of_a_turn_is_a_lost_rank_soon(group: RankGroup) -> None:
    group._ranks = [RankOf([Answer(ValueError("bad"))]), RankOf([Answer(None, after_s=60)])]
    began = time.monotonic()
    with pytest.raises(RanksLost, match="1 of 2 ranks failed: bad"):
        group.step([turn("a", size=2)])
    assert time.monotonic() - began < 1


def test_a_move_that_failed_is_not_stepped_over(group: RankGroup) -> None:
    group._holders["a"] = frozenset({1})
    group._ranks = [
        RankOf([Answer(Report({"a": Outcome(1)}, 0.1))], [Answer(PeerLost(0, (1,), "a message", "it was late"))]),
        RankOf([], [Answer(MemoryError("no room"))]),
    ]
    with pytest.raises(RanksLost, match="no room"):
        group.step([turn("a")])


def test_a_move_that_failed_on_all_its_ranks_is_not_stepped_over(group: RankGroup) -> None:
    group._holders["a"] = frozenset({1})
    moved = Answer(MemoryError("no room"))
    group._ranks = [
        RankOf([Answer(Report({"a": Outcome(1)}, 0.1))], [moved]),
        RankOf([], [Answer(MemoryError("no room"))]),
    ]
    with pytest.raises(RanksLost, match="a move of a trajectory's state failed: no room"):
        group.step([turn("a")])


def test_an_error_on_one_rank_is_a_lost_rank_soon_beside_one_that_takes_its_time(group: RankGroup) -> None:
    group.size = 4
    slow, quick = [Answer(REPORT, after_s=1.5), Answer(after_s=1.5)], [Answer(ValueError("bad")), Answer(after_s=60)]
    group._ranks = [RankOf([answer]) for answer in slow + quick]
    began = time.monotonic()
    with pytest.raises(RanksLost, match="1 of 2 ranks failed: bad"):
        group.step([turn("b", size=2), turn("a", start=2, size=2)])
    assert time.monotonic() - began < 1


class Unpicklable(Exception):
    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")


class Unsendable(Exception):
    def __init__(self) -> None:
        super().__init__("bad request")
        self.made = (i for i in range(3))


@pytest.mark.parametrize("error", [Unpicklable("bad", "request"), Unsendable()], ids=["back", "away"])
def test_an_error_that_cannot_be_sent_is_still_the_request_s(group: RankGroup, error: Exception) -> None:
    group._ranks = [RankOf([Answer(error)]), RankOf([Answer(error)])]
    [found] = group.step([turn("a", size=2)])
    assert isinstance(found, RuntimeError)
    assert type(error).__name__ in str(found)


def test_a_late_rank_of_rays_own_is_lost(group: RankGroup) -> None:
    group._ranks = [RankOf([Answer(GetTimeoutError("gone"))]), RankOf([Answer(GetTimeoutError("gone"))])]
    with pytest.raises(RanksLost, match="gone"):
        group.step([turn("a", size=2)])
