"""Groups: requests that belong together, such as an agent's round, with one deadline and one budget for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel

from raydiance.serve.api.body import Body, read_body
from raydiance.serve.api.docs import body_of
from raydiance.serve.api.fields import refuse_files
from raydiance.serve.api.headers import GroupId, NoIdempotencyKey, Tenant, check_id
from raydiance.serve.api.schemas import GroupCreation, VideoPage
from raydiance.serve.api.translate import native_request
from raydiance.serve.api.validation import validate
from raydiance.serve.api.views import ErrorBody, ErrorView, JobUsage, JobView
from raydiance.serve.config import Config
from raydiance.serve.errors import InvalidRequest, RaydianceError, TooManyRequests

if TYPE_CHECKING:
    from raydiance.serve.groups import Outcome, Wanted
    from raydiance.serve.service import Service


class Counts(BaseModel):
    """Jobs that are kept, by state."""

    queued: int
    in_progress: int
    completed: int
    failed: int
    cancelled: int


class JobIds(BaseModel):
    data: list[str]
    has_more: bool
    first_id: str | None
    last_id: str | None


class GroupView(BaseModel):
    """A group. `deadline` is a Unix time: `deadline_s` after the group's creation. `usage` is that of all jobs that
    have ended, deleted ones too; `expected_gpu_seconds` are of the others. `gpu_seconds_left` is null without a budget.
    """

    id: str
    object: Literal["group"]
    tenant: str
    created_at: int
    service_tier: str | None
    slo_s: float | None
    deadline_s: float | None
    deadline: float | None
    max_gpu_seconds: float | None
    expected_gpu_seconds: float
    gpu_seconds_left: float | None
    counts: Counts
    usage: JobUsage
    jobs: JobIds


class OutcomeView(BaseModel):
    """Of one request, in the order in which they were sent: its job, or its error and when to come again."""

    job: JobView | None
    error: ErrorView | None
    retry_after_s: float | None


class GroupCreated(GroupView):
    requests: list[OutcomeView]


def router(service: Service, config: Config) -> APIRouter:
    routes = APIRouter(prefix="/v1/groups", tags=["groups"], responses={"4XX": {"model": ErrorBody}})

    @routes.post("", status_code=201, response_model=GroupCreated, openapi_extra=body_of(GroupCreation))
    async def create_group(request: Request, tenant: Tenant, _: NoIdempotencyKey) -> dict[str, Any]:
        """Accepts a group's requests: each by itself, or with `atomic` all of them or none."""
        body = await read_body(request, config.limits)
        refuse_files(body)
        return await created(service, body.fields, tenant)

    @routes.get("/{id}", response_model=GroupView)
    async def retrieve_group(id: GroupId, tenant: Tenant, page: Annotated[VideoPage, Query()]) -> dict[str, Any]:
        """How far it is, what it has used, and a page of its jobs' ids."""
        after = None if page.after is None else check_id(page.after, "after")
        return await service.groups.show(id, tenant=tenant, after=after, limit=page.limit, order=page.order)

    @routes.delete("/{id}", response_model=GroupView)
    async def cancel_group(id: GroupId, tenant: Tenant) -> dict[str, Any]:
        """Cancels all of its unfinished jobs. The group stays: it can be looked at, and added to."""
        group = await service.groups.cancel(id, tenant=tenant)
        return await service.groups.show(id, tenant=group.tenant)

    return routes


async def created(service: Service, fields: Mapping[str, Any], tenant: str | None) -> dict[str, Any]:
    """A new group from the fields of a `GroupCreation`, as clients see it."""
    wanted = validate(GroupCreation, fields)
    group, outcomes = await service.groups.create(
        [_parsed(values) for values in wanted.requests],
        tenant=tenant,
        group_id=wanted.id,
        atomic=wanted.atomic,
        service_tier=wanted.service_tier,
        slo_s=wanted.slo_s,
        deadline_s=wanted.deadline_s,
        max_gpu_seconds=wanted.max_gpu_seconds,
    )
    shown = await service.groups.show(group.id, tenant=group.tenant, limit=len(outcomes), order="asc")
    return shown | {"requests": _views(outcomes)}


def _parsed(values: dict[str, Any]) -> Wanted:
    try:
        return native_request(Body(dict(values)))
    except InvalidRequest as e:
        return e


def _views(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [
        {
            "job": None if outcome.job is None else outcome.job.public(),
            "error": None if outcome.error is None else outcome.error.to_dict(),
            "retry_after_s": _retry_after_s(outcome.error),
        }
        for outcome in outcomes
    ]


def _retry_after_s(error: RaydianceError | None) -> float | None:
    return round(error.retry_after_s, 3) if isinstance(error, TooManyRequests) else None
