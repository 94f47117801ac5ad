"""A server that is stopped while it works: at once, nothing lost, and nothing left of its cluster."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path

import httpx
import pytest
from tests.servers import Server

from raydiance.serve.storage.job import JobState
from raydiance.serve.storage.jobs import JobStore

LONG = {"prompt": "a circle", "height": 128, "width": 128, "num_frames": 17, "num_inference_steps": 200, "seed": 1}
STOP_TIMEOUT_S = 10  # 3 on an idle machine; draining took 24
JOB_TIMEOUT_S = 150


def session_of(server: Server) -> Path:
    """Ray's folder of the cluster under a server."""
    command = Path(f"/proc/{server.pids('raylet/raylet ')[0]}/cmdline").read_bytes().decode()
    found = re.search(r"[^\s\0=]*/session_[\d_-]+", command)
    assert found is not None, command
    return Path(found[0])


def busy(server: Server, steps: int = 200) -> str:
    """The id of a job that is being denoised."""
    job_id = httpx.post(f"{server.url}/v1/jobs", json={**LONG, "num_inference_steps": steps}).json()["id"]
    deadline = time.monotonic() + 60
    while not httpx.get(f"{server.url}/v1/jobs/{job_id}").json()["progress"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return str(job_id)


def test_it_stops_at_once_whatever_it_does(tmp_path: Path) -> None:
    server = Server(tmp_path).wait_ready()
    try:
        busy(server)
        session = session_of(server)
        others = session.with_name("session_of_another")
        others.mkdir()
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert time.monotonic() - began < STOP_TIMEOUT_S
        assert others.exists()
        others.rmdir()
    finally:
        server.stop()
    assert server.pids() == []
    assert not session.exists()
    assert not _points_to(session.with_name("session_latest"), session)
    assert sorted(os.listdir(tmp_path)) == ["artifacts", "jobs.db", "server.log"]
    told = server.log.read_text().split("Ctrl-C")[-1]
    assert told.strip() == "stopping; unfinished jobs go on at the next start\nstopped"


def _points_to(link: Path, target: Path) -> bool:
    return link.is_symlink() and link.readlink() == target


@pytest.mark.drill
def test_a_job_that_was_stopped_goes_on_at_the_next_start(tmp_path: Path) -> None:
    first = Server(tmp_path, {"denoiser.progress_interval_s": 0.05}).wait_ready()
    job_id = busy(first, steps=60)
    assert first.stop() == 0
    with contextlib.closing(JobStore(f"sqlite:///{tmp_path}/jobs.db")) as jobs:
        assert jobs.get(job_id).state is JobState.QUEUED  # a clean stop is no attempt that failed
    second = Server(tmp_path).wait_ready()
    try:
        deadline = time.monotonic() + JOB_TIMEOUT_S
        while (job := httpx.get(f"{second.url}/v1/jobs/{job_id}").json())["status"] in ("queued", "in_progress"):
            assert time.monotonic() < deadline, job
            time.sleep(0.2)
        assert (job["status"], job["attempt"]) == ("completed", 2)
        assert httpx.get(f"{second.url}/v1/jobs/{job_id}/content").status_code == 200
    finally:
        second.stop()
