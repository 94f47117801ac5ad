"""The ingress without a cluster: what its handle methods answer where HTTP's routes are not asked."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raydiance.models.card import Defaults, ModelCard
from raydiance.serve.config import Config, load_config
from raydiance.serve.errors import InvalidRequest, NotFound, Unavailable
from raydiance.serve.gateway import Gateway
from raydiance.serve.pricer import Quote, Target
from raydiance.serve.request import GenerationRequest
from raydiance.serve.service import Service
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.job import Job, now
from raydiance.serve.storage.jobs import JobStore

CARD = ModelCard("tiny", "tiny", ("text-to-video",), Defaults(32, 32, 5, 8, 4, 1.0), 16, 4, 8, 4, (1, 2, 2))


class Dispatcher:
    """Lets everything in and does nothing."""

    async def card(self) -> ModelCard:
        return CARD

    async def quote(self, *_: Any) -> Quote:
        return Quote(Target("standard", math.inf, math.inf), 0.0, 0.0, 0.0, 0.0)

    admit = quote

    async def withdraw(self, job_id: str) -> None: ...
    async def enqueue(self, job_id: str) -> None: ...
    async def cancel(self, job_id: str) -> None: ...


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


async def test_groups_and_errors_are_those_of_http(tmp_path: Path) -> None:
    config: Config = load_config(
        {"storage.database": f"sqlite:///{tmp_path}/jobs.db", "storage.artifacts": str(tmp_path / "artifacts")}
    )
    jobs, artifacts = JobStore(config.storage.database), ArtifactStore(config.storage.artifacts)
    dispatcher: Any = Dispatcher()
    gateway: Any = SimpleNamespace(_service=Service(config, {"tiny": dispatcher}, jobs, artifacts))
    body = {"id": "round", "requests": [{"prompt": "a ball"}, {"prompt": "a ball", "steps": 3}], "max_gpu_seconds": 9}
    made = await Gateway.create_group(gateway, body)
    assert [one["job"] is not None for one in made["requests"]] == [True, False]
    assert made["requests"][1]["error"]["param"] == "steps"
    assert (await Gateway.group(gateway, "round", "default"))["jobs"]["data"] == made["jobs"]["data"]
    with pytest.raises(NotFound):
        await Gateway.group(gateway, "round", "acme")
    with pytest.raises(InvalidRequest, match="unknown parameter 'budget'"):
        await Gateway.create_group(gateway, body | {"budget": 1})
    with pytest.raises(InvalidRequest) as caught:
        await Gateway.create_group(gateway, body | {"id": "whole", "atomic": True})
    told = pickle.loads(pickle.dumps(caught.value))
    assert (told.param, told.message) == ("requests.1.steps", caught.value.message)
    assert told.message.startswith("requests.1: ")
    assert (await Gateway.quote(gateway, {"prompt": "a ball", "group": "round"}))["would_be_admitted"]
    assert (await Gateway.cancel_group(gateway, "round"))["counts"]["cancelled"] == 1
    jobs.close()
