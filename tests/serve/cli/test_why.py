"""`raydiance jobs why`, and the terms of `raydiance generate`, against a server whose queue is real."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.serve.api.conftest import Server, running
from tests.serve.cli.command import run, start

from raydiance.serve.storage.job import JobState


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("why")) as server:
        server.dispatcher.price(2.0)
        yield server


def test_a_job_that_waits(queue: Server, tmp_path: Path) -> None:
    http = queue.http()
    hanging = {"prompt": "hang", "num_frames": 1, "num_inference_steps": 50, "service_tier": "interactive"}
    runs = http.post("/v1/jobs", json=hanging).json()["id"]
    queue.until(runs, JobState.IN_PROGRESS)
    terms = ("--tier", "batch", "--slo", "900", "--deadline", "1000", "--group", "round-1")
    process = start("generate", "a cat", "-o", "cat.png", *terms, "--url", queue.url, cwd=tmp_path)
    try:
        while not (jobs := http.get("/v1/jobs", params={"group": "round-1"}).json()["data"]):
            assert process.poll() is None
        waits = jobs[0]["id"]
        request = queue.service.jobs.get(waits).request
        assert (request.service_tier, request.slo_s, request.deadline_s) == ("batch", 900, 1000)
        told, _ = run("jobs", "why", waits, "--url", queue.url)
        assert told.splitlines()[0] == f"{waits} is queued: it waits for a denoiser"
        assert "denoisers hold 1 with 100.0 s of work" in told
        assert "it has waited" in told
        everything = json.loads(run("jobs", "why", waits, "--json", "--url", queue.url)[0])
        assert (everything["id"], everything["status"]) == (waits, "queued")
    finally:
        http.delete(f"/v1/jobs/{runs}")
        process.communicate(timeout=120)
    assert process.returncode == 0
    assert (tmp_path / "cat.png").stat().st_size > 0


def test_what_was_decided(queue: Server) -> None:
    http = queue.http()
    job_id = http.post("/v1/jobs", json={"prompt": "hang", "num_frames": 1}).json()["id"]
    queue.until(job_id, JobState.IN_PROGRESS)
    queue.service.jobs.complete(job_id, artifacts=[], timings={}, expires_at=None, decisions={"urgent": 3, "spare": 5})
    queue.dispatcher.walks[job_id].cancel()
    told, _ = run("jobs", "why", job_id, "--url", queue.url)
    assert told.splitlines()[0] == f"{job_id} is completed: it is done"
    assert told.splitlines()[2:] == ["5\tranks were left over", "3\tits deadline is the next that can be met"]


def test_no_such_job_and_no_such_tier(queue: Server) -> None:
    _, err = run("jobs", "why", "video_0", "--url", queue.url, code=1)
    assert "no job 'video_0'" in err
    _, err = run("generate", "x", "--tier", "soon", code=2)
    assert "--tier" in err
