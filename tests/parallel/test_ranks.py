"""Real gloo ranks: every layout equals one rank, sends what it should, and says which rank was lost."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from tests.parallel.cases import Case, cases
from tests.parallel.rank import SHORT_DEADLINE_S
from tests.parallel.worlds import ended, result, run_worlds

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # one rounding of values up to 4
SIZES = (2, 4)
LONGEST_S = 280


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each world that was run, with what its ranks wrote."""
    return run_worlds("tests.parallel.rank", tmp_path_factory.mktemp("worlds"), LONGEST_S)


@pytest.fixture(scope="module")
def seen(worlds: Path) -> dict[int, list[dict[str, dict[str, float]]]]:
    """By size of the world and rank: one process group each ran all cases."""
    return {size: [result(worlds / f"cases-{size}", rank) for rank in range(size)] for size in SIZES}


@pytest.mark.parametrize(
    ("size", "case"), [pytest.param(size, case, id=f"world{size}-{case.id}") for size in SIZES for case in cases(size)]
)
def test_every_layout_equals_one_rank(
    seen: dict[int, list[dict[str, dict[str, float]]]], size: int, case: Case
) -> None:
    for rank in range(size):
        if rank in case.mesh.subgroup.ranks:
            assert seen[size][rank][case.id]["error"] <= TOLERANCE[case.dtype]
            assert seen[size][rank][case.id]["bytes"] == case.bytes_sent(rank)
        else:
            assert case.id not in seen[size][rank]


def test_misuse_is_said(worlds: Path) -> None:
    for rank in (0, 1):
        assert result(worlds / "misuse-2", rank) == {
            "never": f"never waited for: an all-to-all of rank {rank} with ranks [0, 1]",
            "twice": "an all-to-all was waited for already",
            "lists": "1 sends and 2 receives among 2 ranks",
            "strides": "a ring exchange takes contiguous tensors only",
            "deadline": "deadline_s must be above 0, not 0",
            "stranger": f"rank {rank} is not among ranks [{1 - rank}]",
            "closed": "a ring exchange begun with ranks [0, 1], but it was closed",
            "inside": "inside",
            "never, at the end": f"never waited for: a ring exchange of rank {rank} with ranks [0, 1]",
        }


@pytest.mark.parametrize(
    ("what", "exchange"),
    [("stops-ulysses", "an all-to-all"), ("stops-ring", "a ring exchange"), ("dies-ulysses", "an all-to-all")],
)
def test_a_lost_rank_is_named_by_the_deadline(worlds: Path, what: str, exchange: str) -> None:
    world = worlds / f"{what}-2"
    found = result(world, 0)
    assert (found["rank"], found["peers"]) == (0, [1])
    assert found["said"].startswith(f"rank 0 lost rank 1 in {exchange} with ranks [0, 1]: ")
    assert found["said"] in found["again"]  # what is begun after it is told the reason
    if what.startswith("stops"):
        assert found["said"].endswith(f": no answer within {SHORT_DEADLINE_S:g} s")
        assert SHORT_DEADLINE_S * 0.9 <= found["after_s"] < 2 * SHORT_DEADLINE_S
    else:
        assert found["after_s"] < SHORT_DEADLINE_S
    assert ended(world) == [0, -signal.SIGKILL]
