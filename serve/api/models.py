"""The served models, in OpenAI's shape."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter
from pydantic import BaseModel

from raydiance.models.card import ModelCard
from raydiance.serve.api.views import ErrorBody
from raydiance.serve.request import MAX_SAMPLES

if TYPE_CHECKING:
    from raydiance.serve.service import Service


class ModelLimits(BaseModel):
    """What a request may ask for. Sides are multiples of `size_multiple`, frames are `frame_stride * k + 1`.

    Where `target_pixels` is not 0, width times height is about that.
    """

    size_multiple: int
    frame_stride: int
    max_side: int
    target_pixels: int
    max_frames: int
    max_tokens: int
    min_steps: int
    max_steps: int
    max_prompt_chars: int
    max_guidance: float
    max_fps: int
    max_samples: int


class AcceptsView(BaseModel):
    """An input of a task: how many of it at most, and whether the task cannot do without."""

    role: str
    required: bool
    max_count: int


class ParameterView(BaseModel):
    """A number that this model takes beside those that all take. `default` is null: that of `guidance_scale`."""

    minimum: float
    maximum: float
    default: float | None
    integer: bool


class Features(BaseModel):
    """What the engine does for a model; for a guest, which diffusers runs whole, only some of it."""

    step_batching: bool
    preview: bool
    checkpoint: bool
    cancel: bool


class ModelView(BaseModel):
    """OpenAI's model object, and what the model can do.

    `inputs` are by task, `parameters` by name. `strength_tasks` take a strength. `simulated`: nothing is generated.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "raydiance"
    family: str
    tasks: list[str]
    inputs: dict[str, list[AcceptsView]]
    defaults: dict[str, int | float]
    parameters: dict[str, ParameterView]
    strength_tasks: list[str]
    has_guidance: bool
    has_negative_prompt: bool
    has_audio: bool
    guest: bool
    simulated: bool
    features: Features
    limits: ModelLimits

    @classmethod
    def of(cls, card: ModelCard) -> ModelView:
        limits = {name: getattr(card, name) for name in ModelLimits.model_fields if name != "max_samples"}
        whole = not card.is_guest
        return cls(
            id=card.id,
            created=card.created,
            family=card.family,
            tasks=list(card.tasks),
            inputs={task: [AcceptsView(**asdict(a)) for a in card.accepts(task)] for task in card.tasks},
            defaults=asdict(card.defaults),
            parameters={
                p.name: ParameterView(minimum=p.low, maximum=p.high, default=p.default, integer=p.integer)
                for p in card.parameters
            },
            strength_tasks=list(card.strength_tasks),
            has_guidance=card.has_guidance,
            has_negative_prompt=card.has_negative,
            has_audio=card.has_audio,
            guest=card.is_guest,
            simulated=card.is_simulated,
            features=Features(step_batching=whole, preview=whole, checkpoint=whole, cancel=True),
            limits=ModelLimits(**limits, max_samples=MAX_SAMPLES),
        )


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelView]


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
