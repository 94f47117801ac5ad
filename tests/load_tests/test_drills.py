"""The drills' accounts, and what is chosen by chance; the drills themselves run by `make drill`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from drill_faults import FAULTS, RANDOM, WEIGHTS, picked
from drill_growth import Sample, grown, growth
from drill_processes import of_session, running, send, tree
from drill_tally import Seen, first_new_step_s, header, line, longest_pause_s, repeated, row_of

SCRIPT = Path(__file__).parents[2] / "load_tests" / "drills.py"
UNDISTURBED = tuple((float(i), i) for i in range(1, 11))
LOST_AT_5 = ((1.0, 1), (2.0, 2), (3.0, 3), (4.0, 4), (5.0, 5), (8.0, 4), (9.0, 5), (10.0, 6))


@pytest.mark.parametrize(("steps", "count"), [((), 0), (UNDISTURBED, 0), (LOST_AT_5, 2), (((1.0, 7), (2.0, 7)), 1)])
def test_steps_that_are_seen_twice(steps: tuple[tuple[float, int], ...], count: int) -> None:
    assert repeated(steps) == count


def test_the_first_new_step_is_after_the_longest_pause() -> None:
    assert first_new_step_s(LOST_AT_5, 4.5) == 3.5, "what was on its way when the replica died is no new step"
    assert first_new_step_s(UNDISTURBED, 4.5) == pytest.approx(0.5)
    assert first_new_step_s(LOST_AT_5, 10.0) is None
    assert first_new_step_s(((3.0, 1),), 1.0) == 2.0
    assert longest_pause_s(LOST_AT_5) == 3.0
    assert longest_pause_s(()) == 0.0


def test_a_row_counts_what_became_of_each() -> None:
    seen = [
        Seen("a", "completed", steps=UNDISTURBED, off=0),
        Seen("b", "completed", lost_replicas=1, recomputed=3, steps=LOST_AT_5, off=1),
        Seen("c", "completed", attempt=2, steps=LOST_AT_5, off=0, extra_files=["1.png", "states/0/7"]),
        Seen("d", "failed", error="poison"),
        Seen("e", "lost"),
    ]
    row = row_of("x", seen, extra_jobs=1, fault_at=4.5, note="as it is")
    assert (row.sent, row.done, row.resumed, row.failed, row.lost) == (5, 3, 2, 1, 1)
    assert row.recomputed == 3 + 2, "what the server tells, or what the client saw where it tells less"
    assert row.duplicated == 1 + 1, "a job that nobody was given, and a file too many"
    assert (row.equal, row.compared, row.levels_off) == (2, 3, 1)
    assert row.first_step_s == (3.5, 3.5)
    assert row.note == "as it is; 1 states left in the store"
    assert not row.is_good
    assert line(row).endswith("NOT GOOD")
    assert len(header()) == len(line(row).split("  as it is")[0])


def test_a_good_row() -> None:
    row = row_of("x", [Seen("a", "completed", steps=UNDISTURBED, off=1)], 0, fault_at=4.5, exact=1)
    assert row.is_good
    assert row.first_step_s == (0.5, 0.5), "where none was resumed, those that were under way count"
    assert not row_of("nothing", [], 0, 0.0).is_good


def test_faults_by_chance_are_the_same_for_one_seed() -> None:
    assert picked(3, 50) == picked(3, 50) != picked(4, 50)
    assert set(picked(3, 50)) == set(RANDOM)
    assert len(picked(3, 5)) == 5
    many = Counter(picked(1, 5000))
    assert many["denoiser"] > 3 * many["node"]
    assert set(WEIGHTS) <= set(RANDOM) <= set(FAULTS)
    assert {FAULTS[name].home for name in RANDOM} == {"nodes"}, "all can be done to one cluster"


def _samples(last_mb: float, last_groups: int) -> list[Sample]:
    early = [Sample(i, 500.0 if i < 2 else 1000.0, 8, 300, 2, 10.0) for i in range(8)]
    return early + [Sample(8 + i, last_mb, 8, 300, last_groups, 10.0) for i in range(2)]


@pytest.mark.parametrize(
    ("last_mb", "last_groups", "names"),
    [(1050.0, 2, []), (1500.0, 2, ["memory_mb"]), (1000.0, 4, ["placement_groups"])],
)
def test_growth(last_mb: float, last_groups: int, names: list[str]) -> None:
    found = growth(_samples(last_mb, last_groups))
    assert found["memory_mb"] == (1000.0, last_mb), "the first fifth does not count"
    assert grown(found) == names


def test_few_samples_say_nothing() -> None:
    with pytest.raises(ValueError, match="say nothing"):
        growth(_samples(1.0, 1)[:4])


def test_processes_are_found_by_session_and_tree() -> None:
    sleeping = "import time; print(1, flush=True); time.sleep(60)"
    inner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleeping!r}])"
    with subprocess.Popen([sys.executable, "-c", inner], start_new_session=True, stdout=subprocess.PIPE) as outer:
        try:
            assert outer.stdout is not None
            outer.stdout.readline()
            assert len(of_session(outer.pid)) == 2
            assert {p.pid for p in tree(outer.pid, running())} == {p.pid for p in of_session(outer.pid)}
            assert os.getpid() not in {p.pid for p in of_session(outer.pid)}
        finally:
            send([p.pid for p in of_session(outer.pid)], signal.SIGKILL)


def test_the_list_of_drills() -> None:
    said = subprocess.run([sys.executable, str(SCRIPT), "--list"], capture_output=True, text=True, check=True).stdout
    assert [text.split()[0] for text in said.splitlines()] == list(FAULTS)
