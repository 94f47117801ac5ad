"""The API over real HTTP, a real Service and real stores; only what is behind the dispatcher's handle is a double."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
from openai import OpenAI

from raydiance.models.card import Defaults, ModelCard
from raydiance.models.spec import Spec
from raydiance.serve import imaging, media
from raydiance.serve.admission import Supply
from raydiance.serve.api import create_app
from raydiance.serve.backlog import Backlog
from raydiance.serve.config import Config
from raydiance.serve.desk import Desk
from raydiance.serve.engine.cost_model import CostModel
from raydiance.serve.errors import Conflict, NotFound
from raydiance.serve.events import Event
from raydiance.serve.feed import Feed
from raydiance.serve.pricer import Pricer, Quote
from raydiance.serve.request import GenerationRequest
from raydiance.serve.scheduling_config import SchedulingConfig
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.job import Artifact, Job, JobError, JobState, artifact_prefix, now
from raydiance.serve.storage.jobs import JobStore

with warnings.catch_warnings():  # Ray's own
    warnings.filterwarnings("ignore", "Using extra keyword arguments on `Field`", DeprecationWarning)
    from raydiance.serve.service import Service

CARD = ModelCard(
    id="tiny",
    family="tiny",
    tasks=("text-to-image", "text-to-video", "image-to-video", "image-to-image"),
    defaults=Defaults(height=64, width=64, num_frames=9, fps=8, num_inference_steps=4, guidance_scale=4.0),
    size_multiple=16,
    frame_stride=4,
    spatial_factor=8,
    temporal_factor=4,
    patch=(1, 2, 2),
    max_side=1024,
    created=1_750_000_000,
)
DEADLINE_S = 20
TIMINGS = {"encode_s": 0.25, "denoise_s": 2.0, "decode_s": 0.5, "encode_file_s": 9.0, "total_s": 12.0}


class DispatcherDouble:
    """Runs jobs as the real one does, without a cluster: the same transitions, feed and files, of plain colours.

    A prompt that begins with `fail` fails, with `hang` steps on until it is cancelled, with `slow` takes a second.
    What requests take is not known, and all are let in, until `price` says it.
    """

    def __init__(self, jobs: JobStore, artifacts: ArtifactStore, scheduling: SchedulingConfig) -> None:
        self.card_: ModelCard | None = CARD
        self.backlog = Backlog(
            num_replicas=lambda: 1, lead_s=scheduling.lead_s, max_active=1000, patience_s=scheduling.patience_s
        )
        self.desk = Desk(scheduling, lambda: Supply(1, 1))
        self.walks: dict[str, asyncio.Task[None]] = {}
        self.feeds: dict[str, Feed] = {}
        self._jobs = jobs
        self._artifacts = artifacts

    async def card(self) -> ModelCard | None:
        return self.card_

    async def quote(self, request: GenerationRequest, specs: list[dict[str, Any]]) -> Quote:
        return self.desk.quote(request, [Spec.from_dict(values) for values in specs])

    async def admit(self, job_id: str, request: GenerationRequest, specs: list[dict[str, Any]]) -> Quote:
        return self.desk.admit(job_id, request, [Spec.from_dict(values) for values in specs])

    async def withdraw(self, job_id: str) -> None:
        self.desk.leave(job_id)

    async def why(self, job_id: str) -> str | None:
        return self.backlog.why(job_id)

    def price(self, step_s: float) -> None:
        """A denoising step of a sample takes so many seconds, and nothing else takes any."""
        self.desk.open(Pricer(CARD, CostModel({"step": {"rows": step_s}})))

    async def enqueue(self, job_id: str) -> None:
        if job_id not in self.walks:
            self.feeds[job_id] = Feed(job_id, 0)
            self.walks[job_id] = asyncio.ensure_future(self._walk(job_id))

    async def cancel(self, job_id: str) -> None:
        self.walks[job_id].cancel()

    async def events(self, job_id: str, after: int) -> AsyncIterator[list[Event]]:
        feed = self.feeds.get(job_id)
        while feed is not None:
            if batch := await feed.read(after, 1.0):
                after = batch[-1].id
                yield batch
            if feed.is_closed:
                return

    async def _walk(self, job_id: str) -> None:
        feed = self.feeds[job_id]
        feed.publish("queued", {"progress": 0})
        try:
            async with contextlib.AsyncExitStack() as turns:
                for sample in self.desk.enter(self._jobs.get(job_id)):
                    await turns.enter_async_context(self.backlog.turn(sample))
                await self._generate(self._jobs.start(job_id), feed)
        except (asyncio.CancelledError, Conflict, NotFound):
            with contextlib.suppress(NotFound):
                feed.publish("cancelled", self._jobs.get(job_id).public())
        except RuntimeError as e:
            feed.publish("failed", self._jobs.fail(job_id, JobError(message=str(e))).public())
        finally:
            self.desk.leave(job_id)

    async def _generate(self, job: Job, feed: Feed) -> None:
        feed.publish("started", {"progress": 0})
        specs = [Spec.from_dict(s) for s in job.specs]
        kind = specs[0].prompt.split()[0]
        num_steps = 1_000_000 if kind == "hang" else specs[0].num_inference_steps
        for step in range(num_steps):
            await asyncio.sleep(1 / num_steps if kind == "slow" else 0.01)
            percent = min(99, 100 * step // num_steps)
            self._jobs.set_progress(job.id, percent)
            feed.publish("progress", {"step": step, "num_steps": num_steps, "progress": percent, "stage": "denoise"})
            if step < job.request.previews:
                for index, spec in enumerate(specs):
                    data = base64.b64encode(imaging.encode_image(_frames(spec)[0], "webp")).decode()
                    feed.publish("preview", {"index": index, "preview_index": step, "b64": data, "format": "webp"})
            if kind == "fail":
                raise RuntimeError("the GPU caught fire")
        artifacts = [await self._store(job, index, spec) for index, spec in enumerate(specs)]
        ended = self._jobs.complete(job.id, artifacts=artifacts, timings=TIMINGS, expires_at=now() + 60)
        feed.publish("completed", ended.public())

    async def _store(self, job: Job, index: int, spec: Spec) -> Artifact:
        frames = _frames(spec)
        suffix = job.request.output.format or ("mp4" if spec.is_video else "png")
        if suffix in ("mp4", "webm"):
            data = media.encode_video([frames], spec.fps, suffix)
        else:
            data = imaging.encode_image(frames[0], suffix, job.request.output.compression)
        key = f"{artifact_prefix(job.id)}/{index}.{suffix}"
        await self._artifacts.put(key, data)
        return Artifact(
            key=key,
            index=index,
            content_type=media.CONTENT_TYPES[suffix],
            size_bytes=len(data),
            width=spec.width,
            height=spec.height,
            num_frames=spec.num_frames,
            fps=spec.fps if spec.is_video else None,
            seed=spec.seed,
        )


def _frames(spec: Spec) -> np.ndarray[Any, np.dtype[np.uint8]]:
    colour = np.random.default_rng(spec.seed).integers(0, 256, 3, dtype=np.uint8)
    return np.broadcast_to(colour, (spec.num_frames, spec.height, spec.width, 3))


@dataclass
class Server:
    url: str
    service: Service
    dispatcher: DispatcherDouble
    clients: list[httpx.Client] = field(default_factory=list)

    def http(self, **options: Any) -> httpx.Client:
        client = httpx.Client(base_url=self.url, timeout=DEADLINE_S, **options)
        self.clients.append(client)
        return client

    def openai(self, **options: Any) -> OpenAI:
        return OpenAI(**{"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, **options})

    def until(self, job_id: str, *states: JobState) -> Job:
        """The job when it has reached one of the states (default: an end)."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            job = self.service.jobs.get(job_id)
            if job.state in states or (not states and job.state.is_final):
                return job
            time.sleep(0.01)
        raise TimeoutError(f"job {job_id} is {job.state}")


@contextlib.contextmanager
def running(folder: Path, **sections: dict[str, Any]) -> Iterator[Server]:
    config = Config.model_validate(
        {
            "storage": {"database": f"sqlite:///{folder}/jobs.db", "artifacts": str(folder / "artifacts")},
            **sections,
        }
    )
    jobs, artifacts = JobStore(config.storage.database), ArtifactStore(config.storage.artifacts)
    dispatcher = DispatcherDouble(jobs, artifacts, config.scheduling)
    service = Service(config, {"tiny": dispatcher}, jobs, artifacts)
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    options: dict[str, Any] = {"log_level": "warning", "ws": "none", "timeout_graceful_shutdown": 1}
    uvicorn_server = uvicorn.Server(uvicorn.Config(create_app(service, config), **options))
    thread = threading.Thread(target=uvicorn_server.run, kwargs={"sockets": [listener]})
    thread.start()
    server = Server(url, service, dispatcher)
    try:
        while not uvicorn_server.started:
            time.sleep(0.005)
        yield server
    finally:
        for client in server.clients:
            client.close()
        uvicorn_server.should_exit = True
        thread.join()
        listener.close()
        jobs.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With default limits but for the body's, which are small."""
    limits = {"max_body_bytes": 4 << 20, "max_image_bytes": 1 << 20, "max_image_pixels": 1_000_000}
    with running(tmp_path_factory.mktemp("api"), limits=limits) as server:
        yield server


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Servers of other configurations: `start(limits={...})`."""
    with contextlib.ExitStack() as stack:
        yield lambda **sections: stack.enter_context(running(tmp_path, **sections))


@pytest.fixture(scope="session")
def http(server: Server) -> httpx.Client:
    return server.http()


@pytest.fixture(scope="session")
def openai(server: Server) -> Iterator[OpenAI]:
    with server.openai() as client:
        yield client


@pytest.fixture(scope="session")
def picture() -> bytes:
    """A PNG of 64x64."""
    return imaging.encode_image(np.full((64, 64, 3), 128, np.uint8), "png")


@pytest.fixture(scope="session")
def refused() -> Callable[..., None]:
    """Checks an answer: its status, the field it names, and words of its message."""

    def check(answer: httpx.Response, status: int, param: str | None, *words: str) -> None:
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["param"] == param
        for word in words:
            assert word in error["message"], error["message"]
        assert len(error["message"]) < 500

    return check
