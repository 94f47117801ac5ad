"""The ingress deployment: HTTP for the world, and the same service as methods for Python handles. No torch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from pydantic import ValidationError
from ray import serve
from ray.serve.handle import DeploymentHandle

from raydiance.models.card import ModelCard
from raydiance.serve.api.app import create_app
from raydiance.serve.api.groups import created
from raydiance.serve.calls import call, stream
from raydiance.serve.complaints import complaints
from raydiance.serve.config import Config
from raydiance.serve.dispatchers import Dispatchers
from raydiance.serve.errors import InvalidRequest, NotFound, Unavailable
from raydiance.serve.events import Event
from raydiance.serve.pricer import Quote
from raydiance.serve.request import GenerationRequest
from raydiance.serve.service import Service, final_event
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.check import check_storage
from raydiance.serve.storage.jobs import JobStore


class RemoteDispatcher:
    """`service.DispatcherHandle` over Serve."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle

    async def card(self) -> ModelCard | None:
        card: ModelCard | None = await call(self._handle, "card")
        return card

    async def quote(self, request: GenerationRequest, specs: list[dict[str, Any]]) -> Quote:
        quote: Quote = await call(self._handle, "quote", request, specs)
        return quote

    async def admit(self, job_id: str, request: GenerationRequest, specs: list[dict[str, Any]]) -> Quote:
        quote: Quote = await call(self._handle, "admit", job_id, request, specs)
        return quote

    async def withdraw(self, job_id: str) -> None:
        await call(self._handle, "withdraw", job_id)

    async def why(self, job_id: str) -> str | None:
        reason: str | None = await call(self._handle, "why", job_id)
        return reason

    async def enqueue(self, job_id: str) -> None:
        await call(self._handle, "enqueue", job_id)

    async def cancel(self, job_id: str) -> None:
        await call(self._handle, "cancel", job_id)

    async def events(self, job_id: str, after: int) -> AsyncIterator[list[Event]]:
        async with stream(self._handle, "events", job_id, after) as batches:
            async for batch in batches:
                yield batch

    async def events_since(self, job_id: str, after: int, wait_s: float) -> list[Event]:
        batch: list[Event] = await call(self._handle, "events_since", job_id, after, wait_s)
        return batch


@serve.ingress()
class Gateway:
    """Serve deployment. Methods take and give plain dicts, so that callers need none of our classes.

    Whoever may call them may do everything in this cluster: without a `tenant` they see all and nothing limits them;
    with one, they act for it.
    """

    def __init__(
        self, config: Config, dispatchers: Mapping[str, Sequence[DeploymentHandle[Any]]], num_nodes: int
    ) -> None:
        check_storage(config, num_nodes)
        self._config = config
        jobs = JobStore(config.storage.database, ended_ttl_s=config.storage.artifact_ttl_s)

        async def owner_of(job_id: str) -> str | None:
            try:
                return (await asyncio.to_thread(jobs.get, job_id)).owner
            except NotFound:
                return None

        self._dispatchers = {
            name: Dispatchers([RemoteDispatcher(handle) for handle in handles], owner_of)
            for name, handles in dispatchers.items()
        }
        self._service = Service(config, self._dispatchers, jobs, ArtifactStore(config.storage.artifacts))

    def __serve_build_asgi_app__(self) -> FastAPI:
        return create_app(self._service, self._config)

    async def submit(
        self, request: dict[str, Any], idempotency_key: str | None = None, tenant: str | None = None
    ) -> dict[str, Any]:
        """A job from a native request; raises what HTTP would answer."""
        return (await self._service.submit(_parsed(request), tenant=tenant, idempotency_key=idempotency_key)).public()

    async def job(self, job_id: str, tenant: str | None = None) -> dict[str, Any]:
        return (await self._service.get(job_id, tenant=tenant)).public()

    async def quote(self, request: dict[str, Any], tenant: str | None = None) -> dict[str, Any]:
        """What a native request would take, and when it would be done."""
        return await self._service.quote(_parsed(request), tenant=tenant)

    async def create_group(self, group: dict[str, Any], tenant: str | None = None) -> dict[str, Any]:
        """From the body of `POST /v1/groups`."""
        return await created(self._service, group, tenant)

    async def group(self, group_id: str, tenant: str | None = None) -> dict[str, Any]:
        """With the ids of its newest jobs."""
        return await self._service.groups.show(group_id, tenant=tenant)

    async def cancel_group(self, group_id: str, tenant: str | None = None) -> dict[str, Any]:
        group = await self._service.groups.cancel(group_id, tenant=tenant)
        return await self._service.groups.show(group_id, tenant=group.tenant)

    async def why(self, job_id: str, tenant: str | None = None) -> dict[str, Any]:
        return await self._service.why(job_id, tenant=tenant)

    async def cancel(self, job_id: str, tenant: str | None = None) -> dict[str, Any]:
        return (await self._service.cancel(job_id, tenant=tenant)).public()

    async def events(
        self, job_id: str, after: int = 0, tenant: str | None = None
    ) -> AsyncIterator[list[dict[str, Any]]]:
        """Streams events to the final one."""
        async for event in self._service.events(job_id, after, tenant=tenant):
            yield [event.model_dump()]

    async def events_since(
        self, job_id: str, after: int = 0, wait_s: float = 5.0, tenant: str | None = None
    ) -> list[dict[str, Any]]:
        """Long poll, for callers that cannot stream (Ray Client)."""
        job = await self._service.get(job_id, tenant=tenant)
        batch: list[Event] = []
        if not job.state.is_final:
            if job.model not in self._dispatchers:
                raise Unavailable(f"job {job_id} waits for model '{job.model}', which is not served here now")
            batch = await self._dispatchers[job.model].events_since(job_id, after, wait_s)
        if not batch and (job := await self._service.get(job_id, tenant=tenant)).state.is_final:
            batch = [final_event(job, after)]
        return [event.model_dump() for event in batch]

    async def content(self, job_id: str, index: int = 0, variant: str = "content", tenant: str | None = None) -> bytes:
        artifact = await self._service.artifact(job_id, index, variant, tenant=tenant)
        return await self._service.artifacts.get(artifact.key)

    async def model_cards(self) -> list[dict[str, Any]]:
        return [card.to_dict() for card in await self._service.models()]

    async def ready(self) -> bool:
        return await asyncio.wait_for(self._service.ready(), 30)


def _parsed(request: dict[str, Any]) -> GenerationRequest:
    """Raises InvalidRequest."""
    try:
        return GenerationRequest.model_validate(request)
    except ValidationError as e:
        found = complaints(e.errors(), GenerationRequest)
        raise InvalidRequest("; ".join(map(str, found)), found[0].param or None) from None
