"""What is done now and then: expired jobs go, webhooks are delivered, and a failing store stops neither for good."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from raydiance.serve import chores
from raydiance.serve.chores import Chores
from raydiance.serve.config import Config, load_config
from raydiance.serve.errors import NotFound, Unavailable
from raydiance.serve.request import GenerationRequest
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.job import Artifact, Job, artifact_prefix, new_job_id, now
from raydiance.serve.storage.jobs import JobStore

SPEC = {"task": "text-to-image", "seed": 0}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_config(
        {
            "storage.database": f"sqlite:///{tmp_path}/jobs.db",
            "storage.artifacts": str(tmp_path / "artifacts"),
            "storage.sweep_interval_s": 0.05,
        }
    )


async def completed(jobs: JobStore, artifacts: ArtifactStore, expires_at: float) -> Job:
    request = GenerationRequest(prompt="p")
    job = jobs.create(
        Job(id=new_job_id("image"), kind="image", model="tiny", request=request, specs=[SPEC], created_at=now())
    )
    key = f"{artifact_prefix(job.id)}/0.png"
    await artifacts.put(key, b"png")
    jobs.start(job.id)
    file = Artifact(key=key, index=0, content_type="image/png", size_bytes=3, width=16, height=16)
    return jobs.complete(job.id, artifacts=[file], timings={}, expires_at=expires_at)


async def gone(jobs: JobStore, job: Job) -> None:
    for _ in range(200):
        try:
            jobs.get(job.id)
        except NotFound:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the expired job is still there")


async def test_expired_jobs_and_their_files_are_removed(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chores, "WEBHOOK_INTERVAL_S", 0.01)
    jobs, artifacts = JobStore(config.storage.database), ArtifactStore(config.storage.artifacts)
    old, new = [await completed(jobs, artifacts, now() + seconds) for seconds in (-1, 3600)]
    running = asyncio.ensure_future(Chores(config, jobs, artifacts).run())
    await gone(jobs, old)
    running.cancel()
    with pytest.raises(NotFound):
        await artifacts.get(old.artifacts[0].key)
    assert await artifacts.get(new.artifacts[0].key) == b"png"
    jobs.close()


async def test_old_inputs_of_no_job_are_removed(
    config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(chores, "WEBHOOK_INTERVAL_S", 0.01)
    jobs, artifacts = JobStore(config.storage.database), ArtifactStore(config.storage.artifacts)
    old, young = ("jobs/image_a/input-0.png", "jobs/image_b/input-0.png")
    for key in (old, young):
        await artifacts.put(key, b"png")
    os.utime(tmp_path / "artifacts" / old, (0, 0))
    calls, remove_orphans = 0, chores.remove_orphans

    async def flaky(*args: object) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise Unavailable("the disk is away")
        return await remove_orphans(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(chores, "remove_orphans", flaky)
    running = asyncio.ensure_future(Chores(config, jobs, artifacts).run())
    for _ in range(200):
        if not (tmp_path / "artifacts" / old).exists():
            break
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.2)  # of several sweeps
    running.cancel()
    assert not (tmp_path / "artifacts" / old).exists()
    assert await artifacts.get(young) == b"png"
    assert calls == 2  # a failure is tried again with the next sweep, a success an hour later
    jobs.close()


async def test_a_store_that_is_away_is_tried_again(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chores, "WEBHOOK_INTERVAL_S", 0.01)
    jobs, artifacts = JobStore(config.storage.database), ArtifactStore(config.storage.artifacts)
    old = await completed(jobs, artifacts, now() - 1)
    calls, sweep = 0, chores.sweep

    async def flaky(*args: object) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise Unavailable("the disk is away")
        return await sweep(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(chores, "sweep", flaky)
    running = asyncio.ensure_future(Chores(config, jobs, artifacts).run())
    await gone(jobs, old)
    assert not running.done()
    running.cancel()
    jobs.close()
