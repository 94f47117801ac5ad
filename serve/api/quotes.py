"""Quotes: what a request would take, and when it would be done, without doing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from raydiance.serve.api.body import read_body
from raydiance.serve.api.docs import body_of
from raydiance.serve.api.fields import FIELDS
from raydiance.serve.api.headers import Tenant
from raydiance.serve.api.translate import native_request
from raydiance.serve.api.views import ErrorBody
from raydiance.serve.config import Config
from raydiance.serve.request import GenerationRequest

if TYPE_CHECKING:
    from raydiance.serve.service import Service


class QuoteView(BaseModel):
    """What a request would take now. Seconds, and GPU-seconds of all `n` samples.

    `latency_s` is that of the slowest sample, alone on an idle server; `starts_in_s` is until what comes before it is
    done, and `expected_finish` the Unix time of its end. `slo_s` is in how many seconds it should be done, null where
    nothing was asked for. Where it would not be admitted, `refusal` says why, and `retry_after_s` when to come again.
    """

    object: Literal["quote"]
    model: str
    n: int
    service_tier: str
    group: str | None
    latency_s: float
    gpu_seconds: float
    cost: float
    starts_in_s: float
    expected_finish: float
    slo_s: float | None
    would_be_admitted: bool
    retry_after_s: float
    refusal: str | None


def router(service: Service, config: Config) -> APIRouter:
    routes = APIRouter(prefix="/v1/quotes", tags=["quotes"], responses={"4XX": {"model": ErrorBody}})

    @routes.post("", response_model=QuoteView, openapi_extra=body_of(GenerationRequest, *FIELDS))
    async def quote(request: Request, tenant: Tenant) -> dict[str, Any]:
        """The price of a request, as `POST /v1/jobs` takes it. Nothing is done for it, its files are not looked at."""
        return await service.quote(native_request(await read_body(request, config.limits)), tenant=tenant)

    return routes
