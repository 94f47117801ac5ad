"""`raydiance serve` with a denoiser that is scaled: to none when idle, from none to two for a queue, and back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.servers import SETTINGS, Server

pytestmark = pytest.mark.slow
TIMEOUT_S = 200
SCALED: dict[str, Any] = {
    "autoscaling.denoiser.min_replicas": 0,
    "autoscaling.denoiser.max_replicas": 2,
    "autoscaling.denoiser.start_s": 10,
    "autoscaling.drain_s": 2,
    "autoscaling.cooldown_s": 3,
    "autoscaling.idle_s": 6,
    "autoscaling.window_s": 5,
    "denoiser.num_threads": 1,
    "scheduling.admission": False,
}
JOB = {"prompt": "a red circle moves right on a black background", "num_inference_steps": 60, "slo_s": 10}


def test_none_two_and_none_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(tmp_path, {**SETTINGS, **SCALED})
    try:
        server.wait_ready()
        began = time.monotonic()
        wait(lambda: denoisers(server) == 0)
        with httpx.Client(base_url=server.url, timeout=30) as client:
            assert client.get("/readyz").status_code == 200
            asked = time.monotonic()
            jobs = [client.post("/v1/jobs", json={**JOB, "seed": i}).raise_for_status().json()["id"] for i in range(16)]
            wait(lambda: denoisers(server) == 2)
            both = time.monotonic()
            ended: dict[str, str] = {}
            while len(ended) < len(jobs):
                assert time.monotonic() - asked < TIMEOUT_S, ended
                states = {job: client.get(f"/v1/jobs/{job}").raise_for_status().json()["status"] for job in jobs}
                ended = {job: state for job, state in states.items() if state not in ("queued", "in_progress")}
                time.sleep(0.2)
            done = time.monotonic()
        assert set(ended.values()) == {"completed"}
        wait(lambda: denoisers(server) == 0)
        with capsys.disabled():
            print(f"\nnone after {asked - began:.1f} s; both processes {both - asked:.1f} s after 16 jobs, "
                  f"done after {done - asked:.1f} s, none {time.monotonic() - done:.1f} s later")  # fmt: skip
    finally:
        server.stop()


def denoisers(server: Server) -> int:
    return len(server.pids("ServeReplica:raydiance:Denoiser"))


def wait(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.1)
