"""Images, in the shape that the openai client sends and expects: the caller waits, or watches them appear."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from raydiance.serve.api.body import Body, read_body
from raydiance.serve.api.docs import IMAGE_RESPONSES, body_of
from raydiance.serve.api.errors import wire_names
from raydiance.serve.api.fields import FIELDS, Given, take_inputs
from raydiance.serve.api.headers import IdempotencyKey, Tenant
from raydiance.serve.api.image_run import ImageRun
from raydiance.serve.api.schemas import ImageEdit, ImageGeneration, ImageParameters
from raydiance.serve.api.translate import IMAGE_NAMES, edit_request, generation_request, refuse_unsupported
from raydiance.serve.api.validation import validate
from raydiance.serve.api.views import ImagesResponse
from raydiance.serve.background import spawn
from raydiance.serve.config import Config
from raydiance.serve.request import GenerationRequest
from raydiance.serve.storage.job import Job

if TYPE_CHECKING:
    from raydiance.serve.service import Service


def router(service: Service, config: Config) -> APIRouter:
    routes = APIRouter(prefix="/v1/images", tags=["images"], responses=IMAGE_RESPONSES)

    async def read(request: Request) -> tuple[Body, Given]:
        body = await read_body(request, config.limits)
        refuse_unsupported(body)
        return body, take_inputs(body)

    async def answer(
        request: Request,
        params: ImageParameters,
        wanted: GenerationRequest,
        tenant: str | None,
        key: str | None,
        event: str,
        given: Given,
    ) -> ImagesResponse | StreamingResponse:
        submitting = asyncio.ensure_future(service.submit(wanted, tenant=tenant, idempotency_key=key))
        with wire_names({**IMAGE_NAMES, **given.names("image")}):
            try:
                job = await asyncio.shield(submitting)
            except asyncio.CancelledError:
                if key is None:
                    spawn(_drop(service, submitting))
                raise
        # with a key, a caller that was cut off can come back for the same job: it is left to run
        run = ImageRun(service, job, params, event, keep=key is not None)
        return run.stream() if params.stream else await run.wait(request)

    @routes.post("/generations", response_model=ImagesResponse, openapi_extra=body_of(ImageGeneration))
    async def generate_images(
        request: Request, tenant: Tenant, key: IdempotencyKey
    ) -> ImagesResponse | StreamingResponse:
        """Images from a prompt. If the caller goes away, the work is cancelled (unless it sent an Idempotency-Key)."""
        body, given = await read(request)
        params = validate(ImageGeneration, body.fields)
        with wire_names(IMAGE_NAMES):
            wanted = generation_request(params, given)
        return await answer(request, params, wanted, tenant, key, "image_generation", given)

    @routes.post("/edits", response_model=ImagesResponse, openapi_extra=body_of(ImageEdit, *FIELDS, required="image"))
    async def edit_images(request: Request, tenant: Tenant, key: IdempotencyKey) -> ImagesResponse | StreamingResponse:
        """Images from an image and a prompt: by the model's own editing if it has any, else from the noised image."""
        body, given = await read(request)
        params = validate(ImageEdit, body.fields, also=FIELDS)
        with wire_names(IMAGE_NAMES):
            wanted = edit_request(params, given, await service.card(params.model))
        return await answer(request, params, wanted, tenant, key, "image_edit", given)

    return routes


async def _drop(service: Service, submitting: asyncio.Future[Job]) -> None:
    """Cancels the job of a caller that went away before it was accepted."""
    job = await submitting
    await service.cancel(job.id, tenant=job.tenant)
