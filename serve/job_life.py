"""One job's life: queued → its samples denoised, a lease at a time → decoded and stored → its end in the table."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from raydiance.models.card import ModelCard
from raydiance.models.spec import Spec
from raydiance.serve.backlog import Backlog
from raydiance.serve.config import Config
from raydiance.serve.desk import Desk
from raydiance.serve.errors import Conflict, GenerationFailed, NotFound, Unavailable
from raydiance.serve.feed import Feed
from raydiance.serve.patience import patiently
from raydiance.serve.shares import Weights
from raydiance.serve.stages.quarantine import Quarantine
from raydiance.serve.stages.recovery import Recovery
from raydiance.serve.stages.safekeeping import Safekeeping
from raydiance.serve.stages.walk import Stages, Walk
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.job import Artifact, Job, JobError, JobState, artifact_prefix, now
from raydiance.serve.storage.jobs import JobStore
from raydiance.serve.storage.owners import LOST_OWNERSHIP
from raydiance.serve.strikes import Strike

log = logging.getLogger("ray.serve")


@dataclass(frozen=True, slots=True)
class Stores:
    """Where a job's end is written, by its owner. Every method waits for a while where they are away, and raises
    Unavailable then."""

    jobs: JobStore
    artifacts: ArtifactStore
    weights: Weights
    ttl_s: float
    owner: str

    async def lookup(self, job_id: str) -> Job | None:
        """None for one that was deleted."""
        try:
            return await patiently(lambda: asyncio.to_thread(self.jobs.get, job_id))
        except NotFound:
            return None

    async def start(self, job_id: str) -> Job:
        """Raises Conflict or NotFound where it is no longer to be done."""
        return await patiently(lambda: asyncio.to_thread(self.jobs.start, job_id, by=self.owner))

    async def fail(self, job_id: str, error: JobError, used: Mapping[str, float] | None = None) -> Job | None:
        """Args: used: GPU-seconds by stage, that are charged all the same."""
        try:
            return await patiently(lambda: asyncio.to_thread(self.jobs.fail, job_id, error, used, by=self.owner))
        except (Conflict, NotFound):
            return await self.lookup(job_id)

    async def strike(self, job_id: str, who: str, place: int) -> Mapping[str, Strike]:
        """Raises Conflict where it is another's; waits for nothing."""
        return (await asyncio.to_thread(self.jobs.strike, job_id, who, place, by=self.owner)).strikes

    async def charge(self, job_id: str, used: Mapping[str, float]) -> None:
        """What a job that somebody else ended had used by then."""
        if any(used.values()):
            await asyncio.to_thread(self.jobs.charge, job_id, used)

    async def save_progress(self, job_id: str, percent: int) -> None:
        """As far as the table is there: the next percent says more."""
        try:
            await asyncio.to_thread(self.jobs.set_progress, job_id, percent, by=self.owner)
        except Unavailable as e:
            log.warning("job %s is at %d%%, which is not written: %s", job_id, percent, e)

    async def complete(
        self, job_id: str, walk: Walk, artifacts: list[Artifact], timings: dict[str, float]
    ) -> Job | None:
        def write() -> Job:
            return self.jobs.complete(
                job_id,
                artifacts=artifacts,
                timings={k: round(v, 4) for k, v in timings.items()},
                expires_at=now() + self.ttl_s,
                gpu_seconds=walk.gpu_seconds,
                decisions=walk.decisions,
                by=self.owner,
            )

        try:
            return await patiently(lambda: asyncio.to_thread(write))
        except (Conflict, NotFound) as e:
            if e.code == LOST_OWNERSHIP:
                raise
            job = await self.lookup(job_id)
            if job is None or job.state is not JobState.COMPLETED:  # it was cancelled or deleted: its files go too
                await self.artifacts.delete_prefix(artifact_prefix(job_id))
            return job  # completed by a write that was done, and not answered


class JobLife:
    """Args:
    warm: the model's card, when it is known what its requests take.
    """

    def __init__(
        self,
        config: Config,
        stages: Stages,
        warm: asyncio.Future[ModelCard],
        desk: Desk,
        backlog: Backlog,
        stores: Stores,
        quarantine: Quarantine,
        job: Job,
        feed: Feed,
    ) -> None:
        self._lease_s = config.scheduling.lease_s
        self._quarantine = quarantine
        self._keeping = Safekeeping(stores.artifacts, job, config.denoiser.store_interval_s)
        self._stages = stages
        self._warm = warm
        self._desk = desk
        self._backlog = backlog
        self._stores = stores
        self._job = job
        self._feed = feed
        self._started: asyncio.Future[Job] | None = None
        self._used: Mapping[str, float] = {}  # GPU-seconds by stage, of the leases that have ended

    async def live(self) -> None:
        """To its final event. Raises Unavailable where its end could not be written."""
        job = self._job
        try:
            ended = await self._end()
        finally:
            self._desk.leave(job.id)
        if ended is None:
            self._feed.publish("cancelled", {"id": job.id, "status": "cancelled"})  # deleted meanwhile
        elif ended.state is JobState.COMPLETED:
            self._feed.publish("completed", ended.public())
        elif ended.state.is_final:
            self._feed.publish("failed" if ended.state is JobState.FAILED else "cancelled", ended.public())
        if ended is None or ended.state.is_final:  # else another dispatcher goes on from its states
            await self._forget_states()

    async def _forget_states(self) -> None:
        try:
            await self._keeping.forget()
        except Unavailable as e:
            log.warning("states of job %s stay until its files expire: %s", self._job.id, e)

    async def _end(self) -> Job | None:
        """The ended job; None if it was deleted. Raises Unavailable."""
        job, wanted_s = self._job, self._job.request.deadline_s
        left_s = None if wanted_s is None else job.created_at + wanted_s - now()
        try:
            async with asyncio.timeout(left_s):
                return await self._run()
        except TimeoutError:
            message = f"it was not done within deadline_s={wanted_s}, after which nobody wants it"
            return await self._stores.fail(
                job.id, JobError(message=message, param="deadline_s", code="deadline_exceeded")
            )
        except (asyncio.CancelledError, Conflict, NotFound) as e:
            if getattr(e, "code", None) != LOST_OWNERSHIP:
                await self._stores.charge(job.id, self._used)
            return await self._stores.lookup(job.id)  # cancelled, deleted, or another's
        except Unavailable:
            raise
        except Exception as e:
            log.exception("job %s failed", job.id)
            cause = getattr(e, "cause", None) or e
            code = cause.code if isinstance(cause, GenerationFailed) else GenerationFailed.default_code
            error = JobError(message=f"{type(cause).__name__}: {cause}"[:1000], code=code)
            return await self._stores.fail(job.id, error, self._used)

    async def _run(self) -> Job | None:
        """Raises Conflict or NotFound where it is no longer to be done."""
        job, waited_from, card = self._job, time.monotonic(), await self._warm
        samples = self._desk.enter(job, await self._stores.weights.of(job.tenant))

        @asynccontextmanager
        async def turn(index: int, share: float) -> AsyncIterator[None]:
            whole = samples[index]
            async with self._backlog.turn(self._desk.left(whole, whole.seconds * share)):
                yield

        walk = Walk(
            self._stages,
            card,
            job,
            self._feed,
            lambda percent: self._stores.save_progress(job.id, percent),
            begin=self._begin,
            turns=turn,
            terms=[sample.terms for sample in samples],
            prices_s=[sample.seconds for sample in samples],
            lease_s=self._lease_s,
            recovery=Recovery(
                self._quarantine, job.strikes, lambda who, place: self._stores.strike(job.id, who, place), self._keeping
            ),
        )
        self._used = walk.gpu_seconds
        artifacts, timings = await walk.run()
        timings["total_s"] = time.monotonic() - waited_from
        if (pricer := self._desk.pricer) is not None:
            for values, busy_s in zip(job.specs, walk.busy_s, strict=True):
                pricer.observe(Spec.from_dict(values), busy_s, timings)
            pricer.observe_job(timings)
        return await self._stores.complete(job.id, walk, artifacts, timings)

    async def _begin(self) -> Job:
        """Once, when the first sample has its turn."""
        if self._started is None:
            self._started = asyncio.ensure_future(self._start())
            self._started.add_done_callback(_look_at)  # whoever waited for it may have been cancelled
        return await asyncio.shield(self._started)

    async def _start(self) -> Job:
        job = await self._stores.start(self._job.id)
        self._feed.publish("started", {"progress": 0, "attempt": job.attempt})
        return job


def _look_at(ended: asyncio.Future[Job]) -> None:
    if not ended.cancelled():
        ended.exception()
