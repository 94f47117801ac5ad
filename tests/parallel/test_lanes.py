"""Lanes: one runs at a time, whose turn it is does not depend on time, and a failure ends all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch

from raydiance.parallel.errors import LaneLost
from raydiance.parallel.lanes import Lanes


def talker(lanes: Lanes, log: list[str], name: str, times: int, pause_s: float = 0.0) -> Callable[[], str]:
    def talk() -> str:
        for i in range(times):
            log.append(f"{name}{i}")
            time.sleep(pause_s)
            lanes.switch()
        return name

    return talk


def test_they_take_turns_whoever_is_slower() -> None:
    for slow in ("a", "b"):
        lanes, log = Lanes(), []
        calls = [talker(lanes, log, name, 3, 0.02 if name == slow else 0.0) for name in "ab"]
        assert lanes.run(calls) == ["a", "b"]
        assert log == ["a0", "b0", "a1", "b1", "a2", "b2"]
        assert not lanes.are_running


def test_one_that_ends_leaves_the_others_to_it() -> None:
    lanes, log = Lanes(), []
    lanes.run([talker(lanes, log, "a", 1), talker(lanes, log, "b", 4), talker(lanes, log, "c", 2)])
    assert log == ["a0", "b0", "c0", "b1", "c1", "b2", "b3"]


def test_one_alone_and_none_at_all() -> None:
    lanes, log = Lanes(), []
    lanes.switch()
    assert lanes.index == 0
    assert lanes.run([talker(lanes, log, "a", 2)]) == ["a"]
    assert lanes.num_switches == 0
    with pytest.raises(ValueError, match="no call to run"):
        lanes.run([])


def test_each_knows_its_index_and_none_is_nested() -> None:
    lanes = Lanes()

    def whoami() -> int:
        before = lanes.index
        lanes.switch()
        assert lanes.index == before
        with pytest.raises(ValueError, match="running already"):
            lanes.run([whoami])
        return before

    for _ in range(3):
        assert lanes.run([whoami] * 3) == [0, 1, 2]


@pytest.mark.parametrize("who", [0, 1])
def test_what_one_raises_ends_the_other_and_is_raised(who: int) -> None:
    lanes, seen = Lanes(), []

    def fail() -> None:
        lanes.switch()
        raise KeyError("mine")

    def go_on() -> None:
        try:
            for _ in range(100):
                lanes.switch()
        except LaneLost as error:
            seen.append(str(error))
            raise

    with pytest.raises(KeyError, match="mine"):
        lanes.run([fail, go_on] if who == 0 else [go_on, fail])
    assert seen == ["another lane failed: 'mine'"]
    assert lanes.run([lambda: 1, lambda: 2]) == [1, 2]  # they can be used again


def test_lanes_keep_their_threads_and_the_callers_grad_mode() -> None:
    lanes = Lanes()
    first = lanes.run([threading.get_ident, threading.get_ident])
    assert first[0] == threading.get_ident()
    assert lanes.run([threading.get_ident, threading.get_ident]) == first
    with torch.no_grad():
        assert lanes.run([torch.is_grad_enabled] * 2) == [False, False]
    assert lanes.run([torch.is_grad_enabled] * 2) == [True, True]
