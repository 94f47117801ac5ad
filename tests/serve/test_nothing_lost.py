"""Processes are killed for real; accepted jobs finish all the same."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.servers import Server

from raydiance.serve import media
from raydiance.serve.dispatchers import slot_of_owner
from raydiance.serve.storage.jobs import JobStore

LONG = {"prompt": "a large red circle moving right on a black background", "height": 96, "width": 96, "num_frames": 17}
SETTINGS = {"denoiser.checkpoint_interval_s": 0.2, "denoiser.progress_interval_s": 0.05}
SMALL = {"height": 64, "width": 64, "num_frames": 9}
FINISH_TIMEOUT_S = 120


def wait_for(client: httpx.Client, job_id: str, *states: str, progress: int = 0) -> dict[str, Any]:
    deadline = time.monotonic() + FINISH_TIMEOUT_S
    while time.monotonic() < deadline:
        job: dict[str, Any] = client.get(f"/v1/jobs/{job_id}").raise_for_status().json()
        if job["status"] in states and job["progress"] >= progress:
            return job
        assert job["status"] not in {"failed", "cancelled"} - set(states), job
        time.sleep(0.05)
    raise AssertionError(f"job {job_id} did not become {states}")


def submit(client: httpx.Client, **request: Any) -> str:
    job_id: str = client.post("/v1/jobs", json={**LONG, **request}).raise_for_status().json()["id"]
    return job_id


def frames(client: httpx.Client, job_id: str) -> bytes:
    data = client.get(f"/v1/jobs/{job_id}/content").raise_for_status().content
    return media.decode_video(data)[0].tobytes()


@pytest.mark.drill
def test_the_whole_cluster_is_killed_during_three_running_jobs(tmp_path: Path) -> None:
    first = Server(tmp_path, SETTINGS)
    try:
        first.wait_ready()
        with httpx.Client(base_url=first.url, timeout=60) as client:
            finished = submit(client, num_inference_steps=4)
            wait_for(client, finished, "completed")
            expected = frames(client, finished)
            running = [submit(client, num_inference_steps=40, seed=i) for i in range(3)]
            wait_for(client, running[0], "in_progress", progress=1)
            for job_id in running[1:]:
                wait_for(client, job_id, "in_progress")
    finally:
        first.kill_all()
    assert first.pids() == []
    second = Server(tmp_path, SETTINGS)
    try:
        second.wait_ready()
        with httpx.Client(base_url=second.url, timeout=60) as client:
            assert frames(client, finished) == expected
            for job_id in running:
                job = wait_for(client, job_id, "completed")
                assert job["attempt"] == 2
                assert len(frames(client, job_id)) == 17 * 96 * 96 * 3
    finally:
        second.stop()


@pytest.mark.drill
@pytest.mark.parametrize("stage", ["Denoiser", "TextEncoder", "VAEDecoder", "Dispatcher", "Gateway"])
def test_a_killed_process_loses_no_job(server: Server, stage: str) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        undisturbed = submit(client, num_inference_steps=40, seed=3)
        wait_for(client, undisturbed, "completed")
        job_id = submit(client, num_inference_steps=40, seed=3)
        wait_for(client, job_id, "in_progress", progress=20)
        victims = server.pids(f"ServeReplica:raydiance:{stage}")
        assert victims
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + FINISH_TIMEOUT_S
        while time.monotonic() < deadline:  # without its gateway the server answers nothing for a while
            try:
                job = client.get(f"/v1/jobs/{job_id}")
            except httpx.TransportError:
                job = None
            if job is not None and job.status_code == 200 and job.json()["status"] == "completed":
                break
            time.sleep(0.1)
        server.wait_ready()
        assert wait_for(client, job_id, "completed")["outputs"]
        assert frames(client, job_id) == frames(client, undisturbed)


@pytest.mark.drill
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["SIGKILL", "SIGSTOP"])
def test_one_of_two_dispatchers_is_lost(tmp_path: Path, fault: signal.Signals) -> None:
    """The other takes its jobs; one that comes back writes nothing more of them."""
    server = Server(tmp_path, {**SETTINGS, "dispatcher.num_replicas": 2, "denoiser.store_interval_s": 0.5})
    table = JobStore(f"sqlite:///{tmp_path}/jobs.db")
    try:
        server.wait_ready()
        with httpx.Client(base_url=server.url, timeout=60) as client:
            undisturbed = submit(client, num_inference_steps=60, seed=3, **SMALL)
            wait_for(client, undisturbed, "completed")
            jobs = [submit(client, num_inference_steps=60, seed=3, **SMALL) for _ in range(6)]
            for job_id in jobs:
                wait_for(client, job_id, "in_progress")
            first = {job_id for job_id in jobs if slot_of_owner(str(table.get(job_id).owner)) == 0}
            assert 0 < len(first) < len(jobs), "both have some"
            [victim] = server.pids("ServeReplica:raydiance:Dispatcher-tiny~1")
            os.kill(victim, fault)
            attempts = {job_id: wait_for(client, job_id, "completed")["attempt"] for job_id in jobs}
            if fault == signal.SIGSTOP:
                os.kill(victim, signal.SIGCONT)
                time.sleep(3)
            assert all((attempts[job_id] == 1) == (job_id in first) for job_id in jobs), attempts
            for job_id in jobs:
                assert frames(client, job_id) == frames(client, undisturbed)
                files = [p for p in (tmp_path / "artifacts/jobs" / job_id).rglob("*") if p.is_file()]
                assert len(files) == len(list((tmp_path / "artifacts/jobs" / undisturbed).rglob("*.*"))), files
    finally:
        table.close()
        server.stop()
