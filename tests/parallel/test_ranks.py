"""Real gloo ranks: every layout equals one rank, sends what it should, and says which rank was lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.parallel.cases import Case, cases
from tests.parallel.rank import SHORT_DEADLINE_S

ROOT = Path(__file__).parents[2]
WORLDS = (2, 4)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # one rounding of values up to 4
START_S = 200  # machines are busy
LONGEST_END_S = 60


class World:
    """The processes of some ranks; none outlives the `with`."""

    def __init__(self, what: str, size: int, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, "-W", "error", "-m", "tests.parallel.rank", what, str(size)]
        env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self.ranks = [
            subprocess.Popen([*command, str(rank), str(folder)], cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)
            for rank in range(size)
        ]

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.communicate()

    def result(self, rank: int) -> dict[str, Any]:
        """What a rank saw, once it ended well."""
        process = self.ranks[rank]
        _, errors = process.communicate(timeout=START_S)
        assert process.returncode == 0, f"rank {rank}: {errors}"
        found: dict[str, Any] = json.loads((self.folder / f"{rank}.json").read_text())
        return found


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, dict[str, float]]]]:
    """By size of the world and rank: one process group each ran all cases."""
    found = {}
    for size in WORLDS:
        with World("cases", size, tmp_path_factory.mktemp(f"world{size}")) as world:
            found[size] = [world.result(rank) for rank in range(size)]
    return found


@pytest.mark.parametrize(
    ("size", "case"), [pytest.param(size, case, id=f"world{size}-{case.id}") for size in WORLDS for case in cases(size)]
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


def test_misuse_is_said(tmp_path: Path) -> None:
    with World("misuse", 2, tmp_path) as world:
        for rank in (0, 1):
            assert world.result(rank) == {
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
def test_a_lost_rank_is_named_by_the_deadline(tmp_path: Path, what: str, exchange: str) -> None:
    with World(what, 2, tmp_path) as world:
        found = world.result(0)
        assert (found["rank"], found["peers"]) == (0, [1])
        assert found["said"].startswith(f"rank 0 lost rank 1 in {exchange} with ranks [0, 1]: ")
        assert found["said"] in found["again"]  # what is begun after it is told the reason
        if what.startswith("stops"):
            assert found["said"].endswith(f": no answer within {SHORT_DEADLINE_S:g} s")
            assert SHORT_DEADLINE_S * 0.9 <= found["after_s"] < SHORT_DEADLINE_S + 1.5
            assert world.ranks[1].poll() is None
        else:
            assert found["after_s"] < SHORT_DEADLINE_S
            assert world.ranks[1].wait(LONGEST_END_S) == -signal.SIGKILL
