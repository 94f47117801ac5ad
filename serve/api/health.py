"""For probes: does the process run, can it take work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter
from pydantic import BaseModel

from raydiance.serve.api.views import ErrorBody
from raydiance.serve.errors import Unavailable

if TYPE_CHECKING:
    from raydiance.serve.service import Service


class Health(BaseModel):
    status: Literal["ok"] = "ok"


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["health"])

    @routes.get("/healthz")
    async def healthz() -> Health:
        """The process runs. Needs no key."""
        return Health()

    @routes.get("/readyz", responses={503: {"model": ErrorBody, "description": "a model is still warming up"}})
    async def readyz() -> Health:
        """Every model has finished its warm-up generation. Needs no key."""
        if not await service.ready():
            warm = {card.id for card in await service.models()}
            waiting = [m.id for m in service.config.models if m.id not in warm]
            raise Unavailable(f"warming up: {', '.join(waiting)}")
        return Health()

    return routes
