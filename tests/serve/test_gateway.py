"""The ingress without a cluster: what its handle methods answer where HTTP's routes are not asked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raydiance.serve.config import Config, load_config
from raydiance.serve.errors import Unavailable
from raydiance.serve.gateway import Gateway
from raydiance.serve.request import GenerationRequest
from raydiance.serve.service import Service
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.job import Job, now
from raydiance.serve.storage.jobs import JobStore


async def test_a_long_poll_for_a_job_whose_model_is_not_served_now(tmp_path: Path) -> None:
    config: Config = load_config(
        {"storage.database": f"sqlite:///{tmp_path}/jobs.db", "storage.artifacts": str(tmp_path / "artifacts")}
    )
    jobs = JobStore(config.storage.database)
    request = GenerationRequest(prompt="a ball")
    spec = {"task": "text-to-video"}
    jobs.create(Job(id="video_1", kind="video", model="old", request=request, specs=[spec], created_at=now()))
    service = Service(config, {}, jobs, ArtifactStore(config.storage.artifacts))
    gateway: Any = SimpleNamespace(_service=service, _dispatchers={})
    with pytest.raises(Unavailable, match="'old', which is not served here now"):
        await Gateway.events_since(gateway, "video_1", 0, 1.0)
    jobs.close()
