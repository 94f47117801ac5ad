"""`GET /v1/jobs/{id}/why` over real HTTP, of a queue that is real: where a job is, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
from tests.serve.api.conftest import Server

from raydiance.serve.api.views import WhyView
from raydiance.serve.storage.job import JobState

STEP_S = 2.0
HANG = {"prompt": "hang", "num_frames": 1, "num_inference_steps": 50}
IMAGE = {"prompt": "a cat", "num_frames": 1}


def why(http: httpx.Client, job_id: str) -> dict[str, Any]:
    answer = http.get(f"/v1/jobs/{job_id}/why")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_job_that_runs_and_one_that_waits_for_it(start: Callable[..., Server]) -> None:
    server = start()
    server.dispatcher.price(STEP_S)
    http = server.http()
    runs = http.post("/v1/jobs", json=HANG | {"service_tier": "interactive"}).json()["id"]
    server.until(runs, JobState.IN_PROGRESS)
    waits = http.post("/v1/jobs", json=IMAGE | {"deadline_s": 1000}).json()["id"]
    told = why(http, waits)
    assert set(told) == set(WhyView.model_fields)
    assert (told["id"], told["object"], told["status"]) == (waits, "job.why", "queued")
    assert told["where"] == "it waits for a denoiser"
    for words in ("it is the next", "denoisers hold 1 with 100.0 s of work", "tier standard", "deadline in"):
        assert words in told["waits"]
    assert (told["attempt"], told["decisions"]) == (0, [])
    assert told["waited_s"] >= 0
    running = why(http, runs)
    assert (running["status"], running["waits"], running["attempt"]) == ("in_progress", None, 1)
    assert "being worked on" in running["where"]
    http.delete(f"/v1/jobs/{runs}")
    server.until(waits)
    assert why(http, runs)["where"].startswith("it was cancelled at")
    assert why(http, waits)["where"].startswith("it is done (encode 0.2 s, denoise 2.0 s")


def test_an_ended_job_tells_what_was_decided(server: Server, http: httpx.Client) -> None:
    """As its dispatcher keeps it: by what, and how often."""
    job_id = http.post("/v1/jobs", json=HANG).json()["id"]
    server.until(job_id, JobState.IN_PROGRESS)
    decisions = {"urgent": 3, "others_first": 7, "of_another_release": 1}
    server.service.jobs.complete(job_id, artifacts=[], timings={}, expires_at=None, decisions=decisions)
    told = why(http, job_id)
    assert [(d["decision"], d["count"]) for d in told["decisions"]] == [
        ("others_first", 7),
        ("urgent", 3),
        ("of_another_release", 1),
    ]
    assert [d["meaning"] for d in told["decisions"]] == [
        "waits: more urgent work takes the ranks",
        "its deadline is the next that can be met",
        "of another release",
    ]
    server.dispatcher.walks[job_id].cancel()


def test_a_failed_job_tells_why(server: Server, http: httpx.Client) -> None:
    job_id = http.post("/v1/jobs", json=IMAGE | {"prompt": "fail"}).json()["id"]
    server.until(job_id)
    assert why(http, job_id)["where"] == "it failed: the GPU caught fire"
