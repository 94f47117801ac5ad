"""Every family on real gloo ranks, in every layout and schedule: the latents of one rank, step by step."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.parallel import worlds
from tests.parallel.family_ranks import LONGEST_S
from tests.parallel.family_runs import BATCHES, DEAF, DEGREES, EVERY, LANES, LAYOUTS, NUM_MOVES, Run, slug
from tests.parallel.family_subjects import SUBJECTS, Subject
from tests.parallel.worlds import run_worlds

TOLERANCE = 1e-4
TOTAL_S = 30 + LONGEST_S
STREAMS = {"wan": ["video"], "flux": ["image"], "hidream": ["image"], "ltx": ["video", "audio"]}
"""Those that are denoised."""
ENV = worlds.ENV | {
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",  # a bar has a thread, which is lost in a fork
}
Seen = dict[str, Any]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TOTAL_S + 30)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of what all worlds wrote."""
    return run_worlds("tests.parallel.family_ranks", tmp_path_factory.mktemp("families"), TOTAL_S, ENV)


@pytest.fixture(scope="module")
def seen(folder: Path) -> dict[int, list[Seen]]:
    """By size of the world and rank."""
    for world in LAYOUTS:
        ended = json.loads((folder / str(world) / "ended.json").read_text())
        said = [path for kind in ("error", "hangs") for path in sorted((folder / str(world)).glob(f"*.{kind}"))]
        told = "\n".join(f"rank {path.stem} of {world}:\n{path.read_text()}" for path in said)
        assert ended == [0] * world, told
    return {
        world: [json.loads((folder / str(world) / f"{rank}.json").read_text()) for rank in range(world)]
        for world in LAYOUTS
    }


def check(run: Run, seen: list[Seen]) -> None:
    """Every rank that takes part in a step has the latents of one rank after it, and the first of the last has the
    result; each ran what it should, and forwards took turns where they should."""
    for rank, found in enumerate(by_run[run.id] for by_run in seen):
        part = [rank in way.mesh.subgroup.ranks for way in run.ways]
        assert [error is not None for error in found["errors"]] == part
        assert all(error <= TOLERANCE for error in found["errors"] if error is not None), found["errors"]
        assert (found["result"] is not None) == (rank == run.ways[-1].start)
        assert found["result"] is None or found["result"] <= TOLERANCE
        assert found["calls"] == run.num_calls(rank)
        interleaved = run.num_interleaved(rank)
        assert found["switches"] > interleaved if interleaved else found["switches"] == 0


@pytest.mark.parametrize("run", EVERY, ids=lambda run: run.id)
def test_every_layout_and_schedule_equals_one_rank(seen: dict[int, list[Seen]], run: Run) -> None:
    check(run, seen[run.world])


def alike() -> dict[str, list[Run]]:
    """Runs of one request in one layout: the first is synchronous."""
    found = defaultdict(list)
    for run in EVERY:
        found[f"{run.batches[0][0].id}-{slug(run.ways[0].layout)}"].append(run)
    return found


@pytest.mark.parametrize("runs", [pytest.param(runs, id=name) for name, runs in alike().items()])
def test_a_schedule_hides_exchanges_and_saves_none(seen: dict[int, list[Seen]], runs: list[Run]) -> None:
    for by_run in seen[runs[0].world]:
        by_schedule = [by_run[run.id] for run in runs]
        assert len({found["bytes"] for found in by_schedule}) == 1
        assert all((found["bytes"] > 0) == (found["calls"] > 0) for found in by_schedule)


@pytest.mark.parametrize("run", BATCHES, ids=lambda run: run.id)
def test_requests_that_share_forwards_equal_each_alone(seen: dict[int, list[Seen]], run: Run) -> None:
    check(run, seen[run.world])


@pytest.mark.parametrize("run", LANES, ids=lambda run: run.id)
def test_two_requests_in_lanes_equal_each_alone(seen: dict[int, list[Seen]], run: Run) -> None:
    check(run, seen[run.world])


@pytest.mark.parametrize("run", DEGREES, ids=lambda run: run.id)
def test_a_trajectory_at_changing_degrees_equals_degree_1(seen: dict[int, list[Seen]], run: Run) -> None:
    assert [way.layout.size for way in run.ways] == [1, 2, 4, 2, 1]
    assert [by_run[run.id]["moves"] for by_run in seen[run.world]] == [NUM_MOVES[run.name]] * run.world
    check(run, seen[run.world])


@pytest.mark.parametrize("run", DEAF, ids=lambda run: run.id)
def test_ranks_that_do_not_hear_each_other_are_far_off(seen: dict[int, list[Seen]], run: Run) -> None:
    """Or the tests here would say nothing of attention."""
    for by_run in seen[run.world]:
        assert max(by_run[run.id]["errors"]) > 100 * TOLERANCE


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.id)
def test_numbers_of_tokens_are_even_or_odd(folder: Path, subject: Subject) -> None:
    lengths = json.loads((folder / "lengths.json").read_text())[subject.id]
    for stream in STREAMS[subject.family]:
        assert lengths[stream] % 2 == subject.is_odd
    assert subject.is_odd or not any(length % 2 for length in lengths.values())
