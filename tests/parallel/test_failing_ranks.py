"""A step that fails on all ranks alike leaves nothing behind: the next one is right, and no memory is held."""

from __future__ import annotations

import gc
import json
import weakref
from typing import Any

import pytest
import torch
from tests.parallel.failing_rank import LONGEST_S, WAYS, WORLD
from tests.parallel.worlds import run_worlds

from raydiance.parallel.lanes import Lanes


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """By rank and way."""
    folder = run_worlds("tests.parallel.failing_rank", tmp_path_factory.mktemp("failing"), 2 * LONGEST_S)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD)]


@pytest.mark.parametrize("way", WAYS)
def test_the_step_after_one_that_failed_on_all_ranks_is_right(seen: list[dict[str, Any]], way: str) -> None:
    for found in seen:
        assert found[way]["raised"] == ["OutOfMemoryError: too big"] * 3
        assert found[way]["error"] <= 1e-4


@pytest.mark.parametrize("fails", [0, 1, None])
def test_lanes_hold_nothing_of_what_has_ended(fails: int | None) -> None:
    lanes, held = Lanes(), []

    def work(index: int) -> torch.Tensor:
        activations = torch.zeros(10)
        held.append(weakref.ref(activations))
        lanes.switch()
        if index == fails:
            raise torch.OutOfMemoryError("too big")
        return activations

    gc.disable()  # what is left to the collector is held until it runs
    try:
        if fails is None:
            lanes.run([lambda i=i: work(i) for i in (0, 1)])  # type: ignore[misc]
        else:
            with pytest.raises(torch.OutOfMemoryError):
                lanes.run([lambda i=i: work(i) for i in (0, 1)])  # type: ignore[misc]
        assert [ref() for ref in held] == [None, None]
    finally:
        gc.enable()
