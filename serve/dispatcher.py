"""One per served model: takes jobs from the table and walks each through the stages, whatever dies meanwhile.

A job's life: queued → start (one winner, in SQL) → texts and images encoded → every sample denoised, its last
checkpoint kept here by value → decoded and stored → completed. If a replica dies, its samples go on elsewhere from
their checkpoint; if the dispatcher dies, its successor starts what the table says is unfinished.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from ray.exceptions import RayError
from ray.serve.handle import DeploymentHandle

from raydiance.models.card import ModelCard
from raydiance.models.spec import Spec
from raydiance.serve.background import detached
from raydiance.serve.backlog import Backlog
from raydiance.serve.chores import Chores
from raydiance.serve.config import Config, ModelConfig
from raydiance.serve.desk import Desk
from raydiance.serve.engine.cost_fit import fit
from raydiance.serve.errors import Unavailable
from raydiance.serve.events import Event
from raydiance.serve.feed import Feed
from raydiance.serve.job_life import JobLife, Stores
from raydiance.serve.ownership import Ownership
from raydiance.serve.pricer import Pricer, Quote
from raydiance.serve.profiled import profile_of
from raydiance.serve.replicas import Replicas
from raydiance.serve.request import GenerationRequest
from raydiance.serve.shares import Weights
from raydiance.serve.signals import Publisher
from raydiance.serve.stages import warm_up
from raydiance.serve.stages.quarantine import Quarantine
from raydiance.serve.stages.walk import Stages
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.check import check_storage
from raydiance.serve.storage.job import Job, JobError
from raydiance.serve.storage.jobs import JobStore
from raydiance.serve.storage.owners import DISPATCHER
from raydiance.serve.strikes import MAX_DISPATCHERS

log = logging.getLogger("ray.serve")
FEED_LINGER_S = 30.0
POLL_S = 10.0
LOOK_S = 5.0
CANCEL_TIMEOUT_S = 10.0


class Dispatcher:
    """Serve deployment of one replica; a model has `dispatcher.num_replicas` of them, each in a slot.

    Args:
        chores: whether this one also delivers webhooks and removes what has expired (one per cluster does).
    """

    def __init__(
        self,
        config: Config,
        model: ModelConfig,
        num_nodes: int,
        chores: bool,
        slot: int = 0,
        **stages: DeploymentHandle[Any],
    ) -> None:
        check_storage(config, num_nodes)
        self._config = config
        self._model = model
        self._stages = Stages(**stages)
        self._jobs = JobStore(
            config.storage.database,
            ended_ttl_s=config.storage.artifact_ttl_s,
            every_power_cut=False,  # what the ingress has accepted is there; what is undone here is done again
        )
        self._artifacts = ArtifactStore(config.storage.artifacts)
        self._ownership = Ownership(self._jobs, model.id, slot)
        self._quarantine = Quarantine()
        self._weights = Weights(self._jobs)
        self._feeds: dict[str, Feed] = {}
        self._walks: dict[str, asyncio.Task[None]] = {}
        self._claiming: set[str] = set()
        self._profile = profile_of(config, model)
        self._reasons: dict[str, str] = {}  # why a job has to be started again
        scheduling = config.scheduling
        self._replicas = Replicas(config, self._stages.denoiser)
        self._backlog = Backlog(
            num_replicas=self._replicas.count,
            lead_s=scheduling.lead_s,
            max_active=config.denoiser.max_active,
            max_batch=config.denoiser.max_batch_size,
            patience_s=scheduling.patience_s,
        )
        self._desk = Desk(scheduling, self._replicas.supply)
        self._replicas.watch(self._backlog.look)
        self._warm: asyncio.Future[ModelCard] = asyncio.get_running_loop().create_future()
        self._background = [asyncio.ensure_future(self._start())]
        if config.autoscaling.is_on:
            denoiser = self._stages.denoiser.deployment_name
            publisher = Publisher(model.id, denoiser, self._desk, self._backlog, self._replicas)
            self._background.append(asyncio.ensure_future(publisher.run()))
        if chores:
            chore = Chores(config, self._jobs, self._artifacts)
            self._background.append(asyncio.ensure_future(chore.run()))

    async def _start(self) -> None:
        """Warms the stages up, then looks again and again for jobs that nobody walks."""
        while not self._warm.done():
            try:
                await self._replicas.some()
                card = ModelCard.from_dict(await self._stages.card())
                samples = await warm_up.measured(self._stages, card, prefix := f"warm-up/{self._model.id}")
                await self._artifacts.delete_prefix(prefix)
                self._desk.open(Pricer(card, self._profile or fit(samples), self._config.parallel_of(self._model).gpus))
                self._warm.set_result(card)
            except RayError as e:
                log.warning("warm-up of '%s' is tried again: %s", self._model.id, e)
                await asyncio.sleep(1)
        await self._ownership.register()  # not before it can walk them: a predecessor may still do
        self._background.append(asyncio.ensure_future(self._ownership.keep(lost=self._let_go)))
        while True:
            try:
                await self._take_up()
            except Unavailable as e:
                log.warning("the jobs table is away, to be read again: %s", e)
            await asyncio.sleep(LOOK_S)

    async def _take_up(self) -> None:
        """Claims every unfinished job that no living dispatcher has: left by one that died, or never told of."""
        for job in await asyncio.to_thread(self._jobs.free, self._model.id, self._ownership.id):
            await self._claim(job.id)

    async def _claim(self, job_id: str) -> bool:
        """Whether it is walked here when this returns.

        One that was begun MAX_DISPATCHERS times without coming further is failed: it takes its process down with it, or
        cannot be stored. One that a clean stop put back is queued, and is begun however often that was.
        """
        if job_id in self._walks or job_id in self._claiming:  # twice is once
            return True
        self._claiming.add(job_id)
        try:
            job = await asyncio.to_thread(self._jobs.claim, job_id, self._ownership.id)
            if job is None:
                return False
            strike = job.strikes.get(DISPATCHER)
            if strike is not None and strike.count >= MAX_DISPATCHERS:
                reason = self._reasons.pop(job.id, "the process that ran it died each time")
                message = f"started {job.attempt} times and never finished: {reason}"
                await self._stores().fail(job.id, JobError(message=message[:1000]))
                return False
            if strike is not None:
                log.info("job %s is started again (attempt %d)", job.id, job.attempt + 1)
            self._begin(job)
            return True
        finally:
            self._claiming.discard(job_id)

    def _let_go(self) -> None:
        """Of all jobs: another dispatcher has them."""
        for walk in self._walks.values():
            walk.cancel()

    def _stores(self) -> Stores:
        ttl_s = self._config.storage.artifact_ttl_s
        return Stores(self._jobs, self._artifacts, self._weights, ttl_s, self._ownership.id)

    async def card(self) -> ModelCard | None:
        """None until the warm-up generation has come through."""
        return self._warm.result() if self._warm.done() else None

    async def quote(self, request: GenerationRequest, specs: list[dict[str, Any]]) -> Quote:
        """What a request would take, and when it would be done. Nothing is done for it."""
        return self._desk.quote(request, [Spec.from_dict(values) for values in specs])

    async def admit(self, job_id: str, request: GenerationRequest, specs: list[dict[str, Any]]) -> Quote:
        """The same; where it is let in, room is kept for the job, which is to be stored and told of (`enqueue`)."""
        return self._desk.admit(job_id, request, [Spec.from_dict(values) for values in specs])

    async def withdraw(self, job_id: str) -> None:
        """A job that was let in and will not come."""
        if job_id not in self._walks:
            self._desk.leave(job_id)

    async def why(self, job_id: str) -> str | None:
        """What a job waits for, in words; None where it does not wait here."""
        return self._backlog.why(job_id)

    async def enqueue(self, job_id: str) -> None:
        """Takes up a job of the table. Twice is once; one that another dispatcher has is left to it."""
        if not await self._claim(job_id):
            self._desk.leave(job_id)

    def _begin(self, job: Job) -> None:
        feed = self._feed(job)
        feed.publish("queued", {"progress": 0})
        task = detached(self._walk(job, feed))
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

    async def _walk(self, job: Job, feed: Feed) -> None:
        try:
            await self._life(job, feed).live()
        except Unavailable as e:  # it is not final in the table, so the next look there takes it up again
            log.warning("job %s: storage is away, to be taken up again: %s", job.id, e)
            self._reasons[job.id] = str(getattr(e, "cause", None) or e)
        else:
            self._reasons.pop(job.id, None)

    def _life(self, job: Job, feed: Feed) -> JobLife:
        here = self._config, self._stages, self._warm, self._desk, self._backlog, self._stores(), self._quarantine
        return JobLife(*here, job, feed)

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
        pricer = self._desk.pricer
        return {
            "walking": len(self._walks),
            "feeds": len(self._feeds),
            "waiting": len(self._backlog.waiting),
            "active": len(self._backlog.active),
            "price_error": None if pricer is None else pricer.error(),
        }

    def check_health(self) -> None:
        """Serve replaces the dispatcher when one of its background tasks has died."""
        for task in self._background:
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise RuntimeError(f"a background task of the dispatcher died: {task.exception()!r}")
