"""Worlds of ranks, run by a program of their own: the tests' process has threads and cannot be forked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ENV = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def run_worlds(module: str, folder: Path, longest_s: float, env: Mapping[str, str] = ENV) -> Path:
    """Runs `python -m MODULE FOLDER`, warnings being errors; the folder, with what the ranks wrote and a `log`.

    All of its processes are killed where it takes longer.
    """
    log = folder / "log"
    command = [sys.executable, "-W", "error", "-m", module, str(folder)]
    with (
        log.open("w") as out,
        subprocess.Popen(
            command, cwd=ROOT, env=os.environ | env, stdout=out, stderr=out, start_new_session=True
        ) as process,
    ):
        try:
            status = process.wait(longest_s)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert status == 0, log.read_text()
    return folder


def result(world: Path, rank: int) -> dict[str, Any]:
    """What a rank saw that ended well."""
    error = world / f"{rank}.error"
    assert not error.exists(), error.read_text()
    assert ended(world)[rank] == 0
    found: dict[str, Any] = json.loads((world / f"{rank}.json").read_text())
    return found


def ended(world: Path) -> list[int]:
    """Exit statuses by rank, negative where a signal ended it."""
    found: list[int] = json.loads((world / "ended.json").read_text())
    return found
