"""The real stages, stores and dispatcher of a tiny model in this process, without Ray."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.local_handles import LocalHandle

from raydiance.models import registry
from raydiance.serve.config import Config, ModelConfig, load_config
from raydiance.serve.dispatcher import Dispatcher
from raydiance.serve.events import Event
from raydiance.serve.request import GenerationRequest
from raydiance.serve.samples import resolve
from raydiance.serve.stages.denoiser import Denoiser
from raydiance.serve.stages.text_encoder import TextEncoder
from raydiance.serve.stages.vae_decoder import VAEDecoder
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.job import Job, new_job_id, now
from raydiance.serve.storage.jobs import JobStore

TIMEOUT_S = 60


class House:
    """Stages, stores and a dispatcher that can be started anew over them."""

    def __init__(self, folder: Path, model: ModelConfig, **settings: Any) -> None:
        self.config: Config = load_config(
            {
                "storage.database": f"sqlite:///{folder}/jobs.db",
                "storage.artifacts": f"{folder}/artifacts",
                "denoiser.num_threads": 1,
                "denoiser.checkpoint_interval_s": 1e-9,
                "denoiser.progress_interval_s": 0,
                **settings,
            }
        )
        self.model = model
        self.jobs = JobStore(self.config.storage.database)
        self.artifacts = ArtifactStore(self.config.storage.artifacts)
        self.denoiser = Denoiser(model, self.config.denoiser, "cpu")
        self.stages = {
            "text_encoder": LocalHandle(TextEncoder(model, self.config.text_encoder, "cpu")),
            "denoiser": LocalHandle(self.denoiser),
            "vae_decoder": LocalHandle(VAEDecoder(model, self.config, "cpu")),
        }
        self.dispatchers: list[Dispatcher] = []

    async def start(self) -> Dispatcher:
        made = Dispatcher(self.config, self.model, 1, False, **self.stages)  # type: ignore[arg-type]
        self.dispatchers.append(made)
        async with asyncio.timeout(TIMEOUT_S):
            while await made.card() is None:
                await asyncio.sleep(0.01)
        return made

    def create(self, **request: Any) -> Job:
        wanted = GenerationRequest(prompt="a red ball", **{"num_inference_steps": 4, "seed": 1, **request})
        specs = resolve(wanted, registry.card(Path(self.model.path), "m"), seed=1)
        values = [spec.to_dict() for spec in specs]
        job = Job(id=new_job_id("video"), kind="video", model="m", request=wanted, specs=values, created_at=now())
        return self.jobs.create(job)

    async def ended(self, job: Job) -> Job:
        async with asyncio.timeout(TIMEOUT_S):
            while not (found := self.jobs.get(job.id)).state.is_final:
                await asyncio.sleep(0.01)
        return found

    async def steps(self) -> int:
        return int((await self.denoiser.stats())["steps"])

    async def retire(self) -> None:
        """Its dispatchers end, as one that is killed."""
        for dispatcher in self.dispatchers:
            tasks = [*dispatcher._background, *dispatcher._walks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self.dispatchers.clear()

    async def close(self) -> None:
        await self.retire()
        self.denoiser._loop.stop()
        self.jobs.close()


async def events(dispatcher: Dispatcher, job: Job) -> list[Event]:
    return [event async for batch in dispatcher.events(job.id, 0) for event in batch]
