"""One per served model: takes jobs from the table and walks each through the stages, whatever dies meanwhile.

A job's life: queued → start (one winner, in SQL) → texts and images encoded → every sample denoised, its last
checkpoint kept here by value → decoded and stored → completed. If a replica dies, its samples go on elsewhere from
their checkpoint; if the dispatcher dies, its successor starts what the table says is unfinished.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from ray.exceptions import RayError
from ray.serve.handle import DeploymentHandle

from raydiance.models.card import ModelCard
from raydiance.serve.background import detached
from raydiance.serve.chores import Chores
from raydiance.serve.config import Config, ModelConfig
from raydiance.serve.errors import Conflict, NotFound, Unavailable
from raydiance.serve.events import Event
from raydiance.serve.feed import Feed
from raydiance.serve.slots import Slots
from raydiance.serve.stages.walk import Stages, Walk
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.check import check_storage
from raydiance.serve.storage.job import Job, JobError, JobState, artifact_prefix, now
from raydiance.serve.storage.jobs import JobStore

log = logging.getLogger("ray.serve")
FEED_LINGER_S = 30.0
POLL_S = 10.0
LOOK_S = 5.0
CANCEL_TIMEOUT_S = 10.0
MAX_ATTEMPTS = 5


class Dispatcher:
    """Serve deployment, one replica per model.

    Args:
        chores: whether this one also delivers webhooks and removes what has expired (one per cluster does).
    """

    def __init__(
        self, config: Config, model: ModelConfig, num_nodes: int, chores: bool, **stages: DeploymentHandle[Any]
    ) -> None:
        check_storage(config, num_nodes)
        self._config = config
        self._model = model
        self._stages = Stages(**stages)
        self._jobs = JobStore(config.storage.database, ended_ttl_s=config.storage.artifact_ttl_s)
        self._artifacts = ArtifactStore(config.storage.artifacts)
        self._feeds: dict[str, Feed] = {}
        self._walks: dict[str, asyncio.Task[None]] = {}
        self._reasons: dict[str, str] = {}  # why a job has to be started again
        self._slots = Slots(config.denoiser.max_active * config.denoiser.num_replicas)
        self._warm: asyncio.Future[ModelCard] = asyncio.get_running_loop().create_future()
        self._background = [asyncio.ensure_future(self._start())]
        if chores:
            chore = Chores(config, self._jobs, self._artifacts)
            self._background.append(asyncio.ensure_future(chore.run()))

    async def _start(self) -> None:
        """Warms the stages up, then looks again and again for jobs that nobody walks."""
        while not self._warm.done():
            try:
                card = ModelCard.from_dict(await self._stages.card())
                await self._stages.warm_up(card)
                self._warm.set_result(card)
            except RayError as e:
                log.warning("warm-up of '%s' is tried again: %s", self._model.id, e)
                await asyncio.sleep(1)
        while True:
            try:
                await self._take_up()
            except Unavailable as e:
                log.warning("the jobs table is away, to be read again: %s", e)
            await asyncio.sleep(LOOK_S)

    async def _take_up(self) -> None:
        """Begins every unfinished job that is not on its way here: left by a predecessor, or never told of.

        One that was started MAX_ATTEMPTS times is failed: it takes its process down with it, or cannot be stored. One
        that a clean stop put back is queued, and is begun however often that was.
        """
        for listed in await asyncio.to_thread(self._jobs.unfinished, self._model.id):
            job = None if listed.id in self._walks else await self._lookup(listed.id)
            if job is None or job.state.is_final or job.id in self._walks:
                continue
            if job.attempt >= MAX_ATTEMPTS and job.state is JobState.IN_PROGRESS:
                reason = self._reasons.pop(job.id, "the process that ran it died each time")
                await self._fail(job.id, f"started {job.attempt} times and never finished: {reason}")
                continue
            if job.state is JobState.IN_PROGRESS:
                job = await asyncio.to_thread(self._jobs.requeue, job.id)
                log.info("job %s is started again (attempt %d)", job.id, job.attempt + 1)
            self._begin(job)

    async def card(self) -> ModelCard | None:
        """None until the warm-up generation has come through."""
        return self._warm.result() if self._warm.done() else None

    async def enqueue(self, job_id: str) -> None:
        """Takes up a job of the table. Twice is once."""
        if job_id not in self._walks:
            self._begin(await asyncio.to_thread(self._jobs.get, job_id))

    def _begin(self, job: Job) -> None:
        if job.id in self._walks:
            return
        feed = self._feed(job)
        feed.publish("queued", {"progress": 0})
        task = detached(self._walk(job.id, len(job.specs), feed))
        self._walks[job.id] = task
        task.add_done_callback(lambda _: self._end(job.id))

    def _feed(self, job: Job) -> Feed:
        return self._feeds.setdefault(job.id, Feed(job.id, job.attempt))

    def _end(self, job_id: str) -> None:
        self._walks.pop(job_id, None)
        self._linger(job_id)

    def _linger(self, job_id: str) -> None:
        """Keeps the feed of a job that nobody walks for those who come late, then forgets it."""
        asyncio.get_running_loop().call_later(FEED_LINGER_S, self._forget, job_id)

    def _forget(self, job_id: str) -> None:
        if job_id not in self._walks:  # it may have been taken up again
            self._feeds.pop(job_id, None)

    async def _walk(self, job_id: str, num_samples: int, feed: Feed) -> None:
        """The whole life of one job, to its final event."""
        try:
            ended = await self._end_of(job_id, num_samples, feed)
        except Unavailable as e:  # it is not final in the table, so the next look there takes it up again
            log.warning("job %s: storage is away, to be taken up again: %s", job_id, e)
            self._reasons[job_id] = str(getattr(e, "cause", None) or e)
            return
        self._reasons.pop(job_id, None)
        if ended is None:
            feed.publish("cancelled", {"id": job_id, "status": "cancelled"})  # deleted meanwhile
        elif ended.state is JobState.COMPLETED:
            feed.publish("completed", ended.public())
        elif ended.state.is_final:
            feed.publish("failed" if ended.state is JobState.FAILED else "cancelled", ended.public())

    async def _end_of(self, job_id: str, num_samples: int, feed: Feed) -> Job | None:
        """The ended job; None if it was deleted. Raises Unavailable when that could not be written."""
        try:
            return await self._run(job_id, num_samples, feed)
        except asyncio.CancelledError:
            return await self._lookup(job_id)
        except Unavailable:
            raise
        except Exception as e:
            log.exception("job %s failed", job_id)
            cause = getattr(e, "cause", None) or e
            return await self._fail(job_id, f"{type(cause).__name__}: {cause}")

    async def _run(self, job_id: str, num_samples: int, feed: Feed) -> Job | None:
        waited_from = time.monotonic()
        async with self._slots.take(num_samples):
            try:
                job = await asyncio.to_thread(self._jobs.start, job_id)
            except (Conflict, NotFound):
                return await self._lookup(job_id)  # cancelled, deleted, or another's
            feed.publish("started", {"progress": 0, "attempt": job.attempt})
            walk = Walk(self._stages, await self._warm, job, feed, lambda p: self._jobs.set_progress(job_id, p))
            artifacts, timings = await walk.run()
        timings["total_s"] = time.monotonic() - waited_from
        try:
            return await asyncio.to_thread(
                lambda: self._jobs.complete(
                    job_id,
                    artifacts=artifacts,
                    timings={k: round(v, 4) for k, v in timings.items()},
                    expires_at=now() + self._config.storage.artifact_ttl_s,
                )
            )
        except (Conflict, NotFound):  # cancelled or deleted in the last moment: its files go too
            await self._artifacts.delete_prefix(artifact_prefix(job_id))
            return await self._lookup(job_id)

    async def _fail(self, job_id: str, reason: str) -> Job | None:
        try:
            return await asyncio.to_thread(self._jobs.fail, job_id, JobError(message=reason[:1000]))
        except (Conflict, NotFound):
            return await self._lookup(job_id)

    async def _lookup(self, job_id: str) -> Job | None:
        try:
            return await asyncio.to_thread(self._jobs.get, job_id)
        except NotFound:
            return None

    async def cancel(self, job_id: str) -> None:
        """Drops the work of a job that the table has as cancelled: the denoiser stops within one step.

        When it returns, no stage writes files of this job any longer.
        """
        if (task := self._walks.get(job_id)) is not None:
            if not task.cancelling():  # twice is once: a second time would cut short what the first lets end
                task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_TIMEOUT_S)

    async def events(self, job_id: str, after: int) -> AsyncIterator[list[Event]]:
        """Batches of events up to the final one; ends without one if the job is not this dispatcher's to run."""
        job = await asyncio.to_thread(self._jobs.get, job_id)
        if job.state.is_final and job_id not in self._feeds:
            return
        feed = self._feed(job)
        try:
            while True:
                if batch := await feed.read(after, POLL_S):
                    after = batch[-1].id
                    yield batch
                if feed.is_closed or (not batch and job_id not in self._walks):
                    return
        finally:
            self._linger(job_id)

    async def events_since(self, job_id: str, after: int, wait_s: float) -> list[Event]:
        """Long poll: what is there above `after`, or an empty list after `wait_s` seconds."""
        job = await asyncio.to_thread(self._jobs.get, job_id)
        if job.state.is_final and job_id not in self._feeds:
            return []
        feed = self._feed(job)
        self._linger(job_id)
        return await feed.read(after, min(wait_s, POLL_S))

    async def stats(self) -> dict[str, Any]:
        return {"walking": len(self._walks), "feeds": len(self._feeds)}

    def check_health(self) -> None:
        """Serve replaces the dispatcher when one of its background tasks has died."""
        for task in self._background:
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise RuntimeError(f"a background task of the dispatcher died: {task.exception()!r}")
