"""What the HTTP API and the Python handle both stand on: accept a job, follow it, fetch what it made. No torch.

It runs in every ingress replica. It reads and writes the jobs table and the artifact store directly, and talks to the
dispatchers (one per model) through Serve handles; it never sees a tensor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

from ray.exceptions import RayTaskError

from raydiance.models.card import ModelCard
from raydiance.serve.background import finish
from raydiance.serve.config import Config
from raydiance.serve.contents import content_of
from raydiance.serve.errors import Conflict, Unavailable
from raydiance.serve.events import Event
from raydiance.serve.groups import JobGroups
from raydiance.serve.intake import Intake
from raydiance.serve.request import GenerationRequest
from raydiance.serve.roster import LOST, DispatcherHandle, Roster
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.job import Artifact, Job, JobState, artifact_prefix, now
from raydiance.serve.storage.jobs import JobStore
from raydiance.serve.tenants import Tenants
from raydiance.serve.why import AWAY, told

log = logging.getLogger("ray.serve")
RECONNECT_S = 0.5


class Service:
    """Where a method takes a `tenant`, another's job is as one that does not exist; None is the operator, who sees all.

    Args:
        dispatchers: by model name; the first is the default model.
    """

    def __init__(
        self, config: Config, dispatchers: Mapping[str, DispatcherHandle], jobs: JobStore, artifacts: ArtifactStore
    ) -> None:
        self.config = config
        self.jobs = jobs
        self.artifacts = artifacts
        self.tenants = Tenants(config, jobs)
        self._roster = Roster(dispatchers)
        self._intake = Intake(config, self._roster, self.tenants, jobs, artifacts)
        self.groups = JobGroups(self._intake, self._roster, self.tenants, jobs, self.cancel)

    async def ready(self) -> bool:
        """Whether every model has finished its warm-up generation."""
        return None not in await self._roster.cards()

    async def models(self) -> list[ModelCard]:
        """The cards of the models that are ready."""
        return [card for card in await self._roster.cards() if card is not None]

    async def card(self, model: str | None) -> ModelCard:
        """Raises NotFound for an unknown model, Unavailable while it warms up."""
        return await self._roster.card(model)

    async def submit(
        self,
        request: GenerationRequest,
        *,
        tenant: str | None,
        idempotency_key: str | None = None,
        remixed_from: str | None = None,
    ) -> Job:
        """Checks everything, stores the inputs and the job, and tells the dispatcher.

        Once begun it is done to its end: a caller that goes away leaves a whole job or none, never half of one.

        Raises InvalidRequest (naming the field and the limit), NotFound, Conflict (an idempotency key that came with
        another body, a group whose deadline has passed), Forbidden and TooManyRequests (by the tenant's limits, its
        group's budget, or what is to be done before it), Unavailable.
        """
        return await finish(self._intake.submit(request, tenant, idempotency_key, remixed_from))

    async def quote(self, request: GenerationRequest, *, tenant: str | None) -> dict[str, Any]:
        """What a request would take, when it would be done, and whether it would be let in now. Nothing is done for it,
        its files are not looked at. Raises as `submit`, but for TooManyRequests."""
        return await self._intake.quote(request, tenant)

    async def why(self, job_id: str, *, tenant: str | None) -> dict[str, Any]:
        """Where a job is, what it waits for, and how often what was decided of its samples. Raises NotFound."""
        job = await self.get(job_id, tenant=tenant)
        waits = trouble = None
        if not job.state.is_final:
            if self._roster.find(job.model) is None:
                trouble = f"it waits for model '{job.model}', which is not served here now"
            else:
                try:
                    waits = await self._roster.ask(job.model, lambda it: it.why(job_id))
                except Unavailable:
                    trouble = AWAY
        return told(job, waits, trouble, now())

    async def get(self, job_id: str, *, tenant: str | None) -> Job:
        """Raises NotFound."""
        return await asyncio.to_thread(self.jobs.get, job_id, tenant)

    async def list(
        self,
        *,
        tenant: str | None,
        kind: str | None = None,
        group: str | None = None,
        after: str | None = None,
        limit: int = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> tuple[list[Job], bool]:
        """One page, and whether there is more. Raises NotFound for an unknown `after`."""
        return await asyncio.to_thread(
            lambda: self.jobs.list(tenant=tenant, kind=kind, group=group, after=after, limit=limit, order=order)
        )

    async def cancel(self, job_id: str, *, tenant: str | None) -> Job:
        """The denoiser drops it within one step. A finished job stays as it is."""
        job = await self.get(job_id, tenant=tenant)
        if job.state.is_final:
            return job
        try:
            job = await asyncio.to_thread(self.jobs.cancel, job_id)
        except Conflict:
            return await self.get(job_id, tenant=tenant)  # it finished in between
        await self._roster.drop(job)
        self._intake.freed(job.model)
        return job

    async def delete(self, job_id: str, *, tenant: str | None) -> Job:
        """Cancels it if need be, then removes the job and its files."""
        job = await self.cancel(job_id, tenant=tenant)
        await self.artifacts.delete_prefix(artifact_prefix(job_id))
        await asyncio.to_thread(self.jobs.delete, job_id)
        return job

    async def events(
        self, job_id: str, after: int = 0, *, tenant: str | None, job: Job | None = None
    ) -> AsyncIterator[Event]:
        """Events with an id above `after`, to the final one. Survives the dispatcher's death. Raises NotFound.

        Args:
            job: as it was read just now, which spares a look.
        """
        known = job
        while True:
            job, known = known or await self.get(job_id, tenant=tenant), None
            dispatcher = self._roster.find(job.model)
            if dispatcher is not None:
                try:  # an ended job too: what happened just now, previews among it, is still to be had
                    async for batch in dispatcher.events(job_id, after):
                        for event in batch:
                            after = max(after, event.id)
                            yield event
                            if event.is_final:
                                return
                except (*LOST, RayTaskError) as e:
                    log.warning("events of job %s were cut, connecting again: %s", job_id, e)
            if job.state.is_final:
                yield final_event(job, after)
                return
            if dispatcher is None:
                raise Unavailable(f"job {job_id} waits for model '{job.model}', which is not served here now")
            await asyncio.sleep(RECONNECT_S)

    async def wait(self, job: Job) -> Job:
        """Returns the job when it has ended."""
        async for event in self.events(job.id, tenant=job.tenant, job=job):
            if event.is_final:
                break
        return await self.get(job.id, tenant=job.tenant)

    async def artifact(self, job_id: str, index: int = 0, variant: str = "content", *, tenant: str | None) -> Artifact:
        """Raises NotFound (no such job or sample), Conflict (not finished)."""
        return await content_of(await self.get(job_id, tenant=tenant), index, variant, self.artifacts)


def final_event(job: Job, after: int = 0) -> Event:
    """The last event of an ended job, for those who come late."""
    state = job.state
    kind: Literal["completed", "failed", "cancelled"] = (
        "completed" if state is JobState.COMPLETED else "cancelled" if state is JobState.CANCELLED else "failed"
    )
    data: dict[str, Any] = job.public()
    return Event(id=after + 1, type=kind, job_id=job.id, data=data)
