"""Where a job is, in words, also when nobody can be asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayActorError

from raydiance.serve.config import Config, load_config
from raydiance.serve.request import GenerationRequest
from raydiance.serve.service import Service
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.job import Job, JobState
from raydiance.serve.storage.jobs import JobStore
from raydiance.serve.why import told

JOB = Job(
    id="image_1",
    kind="image",
    model="tiny",
    request=GenerationRequest(prompt="a ball"),
    specs=[{"task": "text-to-image"}],
    created_at=100.0,
)


@pytest.mark.parametrize(
    ("changes", "waits", "where"),
    [
        ({}, None, "it is accepted, and about to be taken up"),
        ({}, "2 more urgent", "it waits for a denoiser"),
        ({"attempt": 2}, "2", "it waits for a denoiser; it was begun 2 times, as what ran it died"),
        ({"state": JobState.IN_PROGRESS, "progress": 40}, None, "it is at 40%, and being worked on"),
        (
            {"state": JobState.IN_PROGRESS, "progress": 40},
            "1",
            "it is at 40%, and what is left of it waits for a denoiser",
        ),
        ({"state": JobState.IN_PROGRESS, "progress": 95}, None, "it is denoised, and its files are being made"),
        ({"state": JobState.COMPLETED}, None, "it is done"),
        ({"state": JobState.FAILED}, None, "it failed"),
    ],
)
def test_places(changes: dict[str, Any], waits: str | None, where: str) -> None:
    assert told(JOB.model_copy(update=changes), waits, None, 107.0)["where"] == where


@pytest.mark.parametrize(
    ("changes", "waited_s"), [({}, 7.0), ({"started_at": 103.5}, 3.5), ({"completed_at": 101.0}, 1.0)]
)
def test_how_long_it_waited(changes: dict[str, Any], waited_s: float) -> None:
    assert told(JOB.model_copy(update=changes), None, None, 107.0)["waited_s"] == waited_s


class Away:
    async def why(self, job_id: str) -> str | None:
        raise RayActorError


@pytest.mark.parametrize(
    ("dispatchers", "words"), [({"tiny": Away()}, "its dispatcher is away"), ({}, "'tiny', which is not served here")]
)
async def test_nobody_can_be_asked(tmp_path: Path, dispatchers: dict[str, Any], words: str) -> None:
    config: Config = load_config(
        {"storage.database": f"sqlite:///{tmp_path}/jobs.db", "storage.artifacts": str(tmp_path / "artifacts")}
    )
    jobs = JobStore(config.storage.database)
    jobs.create(JOB)
    service = Service(config, dispatchers, jobs, ArtifactStore(config.storage.artifacts))
    why = await service.why(JOB.id, tenant=None)
    assert words in why["where"]
    assert why["waits"] is None
    jobs.close()
