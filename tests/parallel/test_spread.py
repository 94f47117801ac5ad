"""Forwards dealt out over real gloo ranks: who runs what, what all have afterwards, and what goes over the wire."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.parallel.rank import SHORT_DEADLINE_S
from tests.parallel.spread_rank import SIZES, VAES, Number
from tests.parallel.worlds import result, run_worlds

from raydiance.parallel.spread import Spread

LONGEST_S = 120


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_worlds("tests.parallel.spread_rank", tmp_path_factory.mktemp("worlds"), LONGEST_S)


@pytest.mark.parametrize(
    ("size", "wanted", "count"),
    [(size, wanted, count) for size in (2, 3) for wanted in ("all", "first") for count in range(2 * size + 2)],
)
def test_ranks_take_turns_and_tell_each_other(worlds: Path, size: int, wanted: str, count: int) -> None:
    for rank in range(size):
        found = result(worlds / f"shares-{size}", rank)[f"{wanted}-{count}"]
        own = list(range(count))[rank::size]
        assert found["ran"] == own
        receivers = [r for r in range(size) if wanted == "all" or r == 0]
        assert found["right"] == ([True] * count if rank in receivers else [])
        sent = sum(Number(i, []).size_bytes for i in own)
        assert found["bytes"] == sent * len([r for r in receivers if r != rank])


@pytest.mark.parametrize("name", VAES)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_tiles_of_many_ranks_are_the_pixels_of_one(worlds: Path, name: str, size: tuple[int, int]) -> None:
    case = f"{name}-{size[0]}x{size[1]}"
    first, second = (result(worlds / "tiles-2", rank) for rank in (0, 1))
    assert (first[f"{case}-all"], second[f"{case}-all"]) == (True, True)
    assert (first[f"{case}-first"], second[f"{case}-first"]) == (True, None)


def test_an_error_is_raised_where_it_happens_and_a_lost_rank_elsewhere(worlds: Path) -> None:
    first, second = (result(worlds / "fails-2", rank) for rank in (0, 1))
    assert second["said"] == "this one cannot be computed"
    assert second["again"].endswith("but it was closed")
    assert first["said"].startswith("rank 0 lost rank 1 in ")
    assert first["said"].endswith(f"no answer within {SHORT_DEADLINE_S:g} s")
    assert SHORT_DEADLINE_S * 0.9 <= first["after_s"] < 2 * SHORT_DEADLINE_S
    assert first["said"] in first["again"]


class Recorder:
    """A communicator of two ranks, of which the other sends zeros."""

    size, index = 2, 0

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.number = 0

    def all_to_all(self, sends: list[torch.Tensor], receives: list[torch.Tensor]) -> Any:
        self.number += 1
        label = str(self.number)
        self.log.append(f"post {label}")
        return SimpleNamespace(wait=lambda: self.log.append(f"wait {label}"))

    def close(self) -> None:
        self.log.append("close")


def forward(log: list[str], name: str, made: Any = None) -> Any:
    def call() -> torch.Tensor:
        log.append(f"run {name}")
        return torch.zeros(2, 3) if made is None else made

    return SimpleNamespace(call=call, shape=(2, 3), dtype=torch.float32, device=torch.device("cpu"))


def test_results_are_under_way_while_the_next_forward_runs() -> None:
    log: list[str] = []
    Spread(Recorder(log)).run([forward(log, name) for name in "abcd"])
    assert log == ["run a", "post 1", "run c", "post 2", "wait 1", "wait 2"]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (torch.zeros(3, 2), r"said \(\(2, 3\), torch.float32\) on cpu and returned \(\(3, 2\), torch.float32\)"),
        (torch.zeros(2, 3, dtype=torch.float16), r"returned \(\(2, 3\), torch.float16\) on cpu"),
        (torch.zeros(2, 3, device="meta"), r"on cpu and returned .* on meta"),
    ],
)
def test_a_forward_that_returns_something_else_is_refused(made: torch.Tensor, said: str) -> None:
    log: list[str] = []
    with pytest.raises(ValueError, match=said):
        Spread(Recorder(log)).run([forward(log, "a"), forward(log, "b"), forward(log, "c", made)])
    assert log == ["run a", "post 1", "run c", "wait 1", "close"]


def test_there_are_as_many_at_once_as_ranks() -> None:
    assert Spread(Recorder([])).concurrency == 2
