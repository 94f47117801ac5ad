"""The served models, in OpenAI's shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter

from raydiance.serve.api.views import ErrorBody, ModelList, ModelView

if TYPE_CHECKING:
    from raydiance.serve.service import Service


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1/models", tags=["models"])

    @routes.get("")
    async def list_models() -> ModelList:
        """The models that are ready, the default one first."""
        return ModelList(data=[ModelView.of(card) for card in await service.models()])

    @routes.get("/{model:path}", responses={404: {"model": ErrorBody}, 503: {"model": ErrorBody}})
    async def retrieve_model(model: str) -> ModelView:
        """What one model can do: its tasks, defaults and limits."""
        return ModelView.of(await service.card(model))

    return routes
