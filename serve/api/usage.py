"""What was used: GPU-seconds and cost, summed by tenant, model and day."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field, field_validator

from raydiance.serve.api.headers import Tenant
from raydiance.serve.api.schemas import Wire
from raydiance.serve.api.views import ErrorBody, GpuSeconds
from raydiance.serve.errors import InvalidRequest
from raydiance.serve.storage import usage
from raydiance.serve.storage.job import now
from raydiance.serve.storage.ledger import GROUPS, Group
from raydiance.serve.storage.usage import STAGES, Used

if TYPE_CHECKING:
    from raydiance.serve.service import Service


class UsageQuery(Wire):
    """Query of `GET /v1/usage`."""

    start: str | None = Field(None, description="first day, YYYY-MM-DD, UTC; left out: the first of this month")
    end: str | None = Field(None, description="last day; left out: today")
    group_by: str = Field("model,day", description="any of tenant, model, day, joined by commas; empty: one sum")

    @field_validator("start", "end")
    @classmethod
    def _day(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                is_day = date.fromisoformat(value).isoformat() == value
            except ValueError:
                is_day = False
            if not is_day:
                raise ValueError("must be a day such as 2026-12-01")
        return value

    @field_validator("group_by")
    @classmethod
    def _groups(cls, value: str) -> str:
        if value and not set(value.split(",")) <= set(GROUPS):
            raise ValueError(f"must be {', '.join(GROUPS)}, or several of them joined by commas")
        return value

    @property
    def groups(self) -> Sequence[Group]:
        return cast("list[Group]", self.group_by.split(",") if self.group_by else [])


class UsageLine(BaseModel):
    """What is not grouped by is null. `requests` are jobs that ended, however they did."""

    tenant: str | None
    model: str | None
    day: str | None
    requests: int
    gpu_seconds: GpuSeconds
    cost: float

    @classmethod
    def of(cls, used: Used) -> UsageLine:
        shown: dict[str, Any] = usage.public(used.gpu_seconds, used.cost)
        return cls(tenant=used.tenant, model=used.model, day=used.day, requests=used.requests, **shown)


class UsageReport(BaseModel):
    """`total` is that of all lines. A day is that of the jobs' ends, UTC."""

    object: Literal["usage"] = "usage"
    start: str
    end: str
    data: list[UsageLine]
    total: UsageLine


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1/usage", tags=["usage"], responses={"4XX": {"model": ErrorBody}})

    @routes.get("")
    async def sum_usage(tenant: Tenant, query: Annotated[UsageQuery, Query()]) -> UsageReport:
        """GPU-seconds and cost of the caller's tenant; of all tenants where the server asks for no keys."""
        today = datetime.fromtimestamp(now(), UTC).date()
        end = query.end or today.isoformat()
        start = query.start or date.fromisoformat(end).replace(day=1).isoformat()
        if start > end:
            raise InvalidRequest(f"start={start} is after end={end}", "start")
        used = await asyncio.to_thread(
            lambda: service.jobs.usage(start=start, end=end, tenant=tenant, group_by=query.groups)
        )
        return UsageReport(start=start, end=end, data=[UsageLine.of(u) for u in used], total=UsageLine.of(_total(used)))

    return routes


def _total(used: Sequence[Used]) -> Used:
    seconds = {stage: sum(u.gpu_seconds[stage] for u in used) for stage in STAGES}
    return Used(None, None, None, sum(u.requests for u in used), seconds, sum(u.cost for u in used))
