"""A replica over two nodes: ranks of a node are neighbours, and the ring between nodes leaves the pixels alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.drill
def test_four_ranks_over_two_nodes_make_what_one_makes() -> None:
    command = [sys.executable, "-m", "tests.serve.stages.two_nodes"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["nodes"] == [0, 0, 2, 2]  # of each rank, the first that shares its node
    assert found["off"] <= 1e-4
    assert found["lost"] == 0
