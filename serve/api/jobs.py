"""Jobs: the native way in. Anything that can be generated, followed, fetched, cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from raydiance.serve.api import sse
from raydiance.serve.api.body import read_body
from raydiance.serve.api.content import file_response
from raydiance.serve.api.docs import EVENT_RESPONSES, FILE_RESPONSES, body_of
from raydiance.serve.api.fields import FIELDS
from raydiance.serve.api.headers import IdempotencyKey, JobId, Tenant, check_id
from raydiance.serve.api.schemas import JobContent, JobEvents, JobPage
from raydiance.serve.api.translate import native_request
from raydiance.serve.api.views import ErrorBody, JobDeleted, JobList, JobView, WhyView
from raydiance.serve.config import Config
from raydiance.serve.request import GenerationRequest
from raydiance.serve.storage.job import Job

if TYPE_CHECKING:
    from raydiance.serve.service import Service


def router(service: Service, config: Config) -> APIRouter:
    routes = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses={"4XX": {"model": ErrorBody}})

    @routes.post("", status_code=201, response_model=JobView, openapi_extra=body_of(GenerationRequest, *FIELDS))
    async def create_job(request: Request, tenant: Tenant, key: IdempotencyKey) -> dict[str, Any]:
        """Accepts a job and returns at once. Files and URLs in fields named for their role join its `inputs`."""
        wanted = native_request(await read_body(request, config.limits))
        return (await service.submit(wanted, tenant=tenant, idempotency_key=key)).public()

    @routes.get("", response_model=JobList)
    async def list_jobs(tenant: Tenant, page: Annotated[JobPage, Query()]) -> dict[str, Any]:
        after = None if page.after is None else check_id(page.after, "after")
        jobs, more = await service.list(
            tenant=tenant, kind=page.kind, group=page.group, after=after, limit=page.limit, order=page.order
        )
        ends = {"first_id": jobs[0].id if jobs else None, "last_id": jobs[-1].id if jobs else None}
        return {"data": [job.public() for job in jobs], "has_more": more, **ends}

    @routes.get("/{id}", response_model=JobView)
    async def retrieve_job(id: JobId, tenant: Tenant) -> dict[str, Any]:
        return (await service.get(id, tenant=tenant)).public()

    @routes.get("/{id}/why", response_model=WhyView)
    async def explain_job(id: JobId, tenant: Tenant) -> dict[str, Any]:
        """Where it is, what it waits for, and what the scheduler decided of it."""
        return await service.why(id, tenant=tenant)

    @routes.delete("/{id}", response_model=JobView | JobDeleted)
    async def delete_job(id: JobId, tenant: Tenant) -> dict[str, Any]:
        """Cancels an unfinished job, and keeps it as cancelled; removes an ended one with its files."""
        if not (await service.get(id, tenant=tenant)).state.is_final:
            return (await service.cancel(id, tenant=tenant)).public()
        await service.delete(id, tenant=tenant)
        return JobDeleted(id=id).model_dump()

    @routes.post("/{id}/cancel", response_model=JobView)
    async def cancel_job(id: JobId, tenant: Tenant) -> dict[str, Any]:
        """The work stops within one denoising step. An ended job stays as it is."""
        return (await service.cancel(id, tenant=tenant)).public()

    @routes.get("/{id}/events", response_class=StreamingResponse, responses=EVENT_RESPONSES)
    async def job_events(
        id: JobId,
        tenant: Tenant,
        query: Annotated[JobEvents, Query()],
        last_event_id: Annotated[str | None, Header(description="of the last event seen; wins over `after`")] = None,
    ) -> StreamingResponse:
        """Progress, previews and the end, as server-sent events. Resumable: ids grow within a job."""
        after = sse.last_event_id(last_event_id, query.after)
        job = await service.get(id, tenant=tenant)  # an unknown job is a 404, not a stream
        return sse.EventStream(_frames(service, job, tenant, after))

    @routes.head("/{id}/content", include_in_schema=False)
    @routes.get("/{id}/content", response_class=Response, responses=FILE_RESPONSES)
    async def job_content(
        id: JobId, tenant: Tenant, query: Annotated[JobContent, Query()], request: Request
    ) -> Response:
        """What a job has made: one sample's file."""
        artifact = await service.artifact(id, query.index, query.variant, tenant=tenant)
        return await file_response(request, service.artifacts, artifact, f"{id}-{query.index}")

    return routes


async def _frames(service: Service, job: Job, tenant: str | None, after: int) -> AsyncIterator[bytes]:
    events = service.events(job.id, after, tenant=tenant, job=job)
    async for event in sse.with_heartbeats(events, sse.HEARTBEAT_S):
        yield sse.HEARTBEAT if event is None else sse.encode(event.type, event.data, event.id)
