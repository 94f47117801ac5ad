"""Work that outlives its caller: finished, not owned by the request, and its failure told."""

from __future__ import annotations

import asyncio
import base64
import logging
import math
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydiance.models.card import Defaults, ModelCard
from raydiance.serve import background, imaging
from raydiance.serve.config import Config, load_config
from raydiance.serve.pricer import Quote, Target
from raydiance.serve.request import GenerationRequest, ImageInput, Source
from raydiance.serve.service import Service
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.job import artifact_prefix
from raydiance.serve.storage.jobs import JobStore

CARD = ModelCard("m", "m", ("text-to-video", "image-to-video"), Defaults(32, 32, 5, 8, 4, 1.0), 16, 4, 8, 4, (1, 2, 2))
request: ContextVar[str] = ContextVar("request", default="none")


async def test_what_was_begun_is_finished_and_belongs_to_no_request() -> None:
    seen: list[str] = []

    async def work() -> int:
        await asyncio.sleep(0.05)
        seen.append(request.get())
        return 7

    request.set("mine")
    assert await background.finish(work()) == 7
    caller = asyncio.ensure_future(background.finish(work()))
    await asyncio.sleep(0.01)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await asyncio.sleep(0.1)
    assert seen == ["none", "none"]


async def test_a_failure_goes_to_the_caller_or_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        await asyncio.sleep(0.01)
        raise KeyError("lost")

    with pytest.raises(KeyError):
        await background.finish(work())
    assert not caplog.records
    caller = asyncio.ensure_future(background.finish(work()))
    await asyncio.sleep(0)
    caller.cancel()
    with caplog.at_level(logging.ERROR):
        await asyncio.sleep(0.05)
    assert "background work failed" in caplog.text


class Dispatcher:
    """Is told of jobs, and takes a while to hear."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def card(self) -> ModelCard:
        return CARD

    async def admit(self, job_id: str, request: GenerationRequest, specs: list[dict[str, Any]]) -> Quote:
        return Quote(Target("standard", math.inf, math.inf), 0.0, 0.0, 0.0, 0.0)

    async def withdraw(self, job_id: str) -> None:
        """Nothing was reserved."""

    async def enqueue(self, job_id: str) -> None:
        await asyncio.sleep(0.01)
        self.told.append(job_id)


@pytest.mark.parametrize("leaves_after_s", [0.0, 0.002, 0.005, 0.01, 0.02, 0.04])
async def test_a_caller_that_goes_away_leaves_a_whole_job_or_none(tmp_path: Path, leaves_after_s: float) -> None:
    config: Config = load_config(
        {"storage.database": f"sqlite:///{tmp_path}/jobs.db", "storage.artifacts": str(tmp_path / "artifacts")}
    )
    jobs, artifacts = JobStore(config.storage.database), ArtifactStore(config.storage.artifacts)
    dispatcher: Any = Dispatcher()
    service = Service(config, {"m": dispatcher}, jobs, artifacts)
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8)
    source = Source(url="data:image/png;base64," + base64.b64encode(imaging.encode_image(noise)).decode())
    wanted = GenerationRequest(prompt="a ball", inputs=[ImageInput(source=source)])
    caller = asyncio.ensure_future(service.submit(wanted, tenant=None))
    await asyncio.sleep(leaves_after_s)
    caller.cancel()
    await asyncio.wait({caller})
    async with asyncio.timeout(20):
        while not dispatcher.told:
            await asyncio.sleep(0.02)
    kept = jobs.unfinished()
    assert dispatcher.told == [job.id for job in kept]
    folders = [p.name for p in (tmp_path / "artifacts" / "jobs").glob("*")]
    assert folders == [job.id for job in kept]
    for job in kept:
        assert await artifacts.size(f"{artifact_prefix(job.id)}/input-0.png")
    jobs.close()
