"""Videos, in the shape that the openai client sends and expects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from raydiance.models.spec import TASKS, VIDEO_TASKS, Task
from raydiance.serve.api.body import Body, read_body
from raydiance.serve.api.content import file_response
from raydiance.serve.api.docs import FILE_RESPONSES, body_of
from raydiance.serve.api.errors import wire_names
from raydiance.serve.api.fields import FIELDS, Given, refuse_files, take_inputs, take_video_id
from raydiance.serve.api.headers import IdempotencyKey, JobId, Tenant, check_id
from raydiance.serve.api.schemas import (
    VideoContent,
    VideoCreation,
    VideoEdit,
    VideoExtension,
    VideoPage,
    VideoParameters,
    VideoRemix,
)
from raydiance.serve.api.translate import VIDEO_NAMES, refuse_unsupported, remix_request, video_request
from raydiance.serve.api.validation import validate
from raydiance.serve.api.views import ErrorBody, Video, VideoDeleted, VideoList
from raydiance.serve.config import Config
from raydiance.serve.errors import InvalidRequest, NotFound
from raydiance.serve.request import Source
from raydiance.serve.storage.job import Job

if TYPE_CHECKING:
    from raydiance.serve.service import Service

POLL_AFTER_MS = "200"
MADE: Final = [task for task in TASKS if task in VIDEO_TASKS]


def router(service: Service, config: Config) -> APIRouter:
    routes = APIRouter(prefix="/v1/videos", tags=["videos"], responses={"4XX": {"model": ErrorBody}})

    async def read(request: Request) -> Body:
        body = await read_body(request, config.limits)
        refuse_unsupported(body)
        return body

    async def submit(
        params: VideoParameters,
        given: Given,
        tasks: Sequence[Task],
        tenant: str | None,
        key: str | None,
        source: Job | None = None,
    ) -> Video:
        names = {**VIDEO_NAMES, **given.names("video" if "video" in given.fields else "input_reference")}
        if params.seconds is not None and params.num_frames is None:
            names["num_frames"] = "seconds"
        with wire_names(names):
            card = await service.card(params.model or (None if source is None else source.model))
            wanted = video_request(params, given.inputs, card, tasks)
            remixed_from = None if source is None else source.id
            job = await service.submit(wanted, tenant=tenant, idempotency_key=key, remixed_from=remixed_from)
            return Video.of(job)

    async def add_source(given: Given, video_id: str | None, tenant: str | None) -> Job | None:
        """The video of an edit or extension, by id or as it was sent, becomes the first of `given`."""
        if video_id is None:
            if "video" not in given.fields:
                raise InvalidRequest("video is required", "video", "missing_required_parameter")
            return None
        with wire_names({"id": "video", "index": "video"}):
            job = await _video(service, check_id(video_id), tenant)
            artifact = await service.artifact(job.id, tenant=tenant)
        given.add("video", Source(artifact=artifact.key))
        return job

    @routes.post("", openapi_extra=body_of(VideoCreation, *FIELDS))
    async def create_video(request: Request, tenant: Tenant, key: IdempotencyKey) -> Video:
        """Accepts a video and returns at once. An `input_reference` is its first frame, where the model takes one."""
        body = await read(request)
        given = take_inputs(body)
        return await submit(validate(VideoCreation, body.fields, also=FIELDS), given, MADE, tenant, key)

    @routes.post("/edits", openapi_extra=body_of(VideoEdit, *FIELDS, required="video"))
    async def edit_video(request: Request, tenant: Tenant, key: IdempotencyKey) -> Video:
        """A video changed by a prompt. `video` is a file, a URL, or `{"id": …}` of a completed one."""
        body = await read(request)
        video_id, given = take_video_id(body), take_inputs(body)
        params = validate(VideoEdit, body.fields, also=FIELDS)
        source = await add_source(given, video_id, tenant)
        return await submit(params, given, ["video-to-video"], tenant, key, source)

    @routes.post("/extensions", openapi_extra=body_of(VideoExtension, *FIELDS, required="video"))
    async def extend_video(request: Request, tenant: Tenant, key: IdempotencyKey) -> Video:
        """A video that goes on from the last frame of another; the file holds both, one after the other."""
        body = await read(request)
        video_id, given = take_video_id(body), take_inputs(body)
        params = validate(VideoExtension, body.fields, also=FIELDS)
        source = await add_source(given, video_id, tenant)
        given.inputs = [i.model_copy(update={"role": "previous"}) if i.type == "video" else i for i in given.inputs]
        return await submit(params, given, ["image-to-video"], tenant, key, source)

    @routes.get("")
    async def list_videos(tenant: Tenant, page: Annotated[VideoPage, Query()]) -> VideoList:
        after = None if page.after is None else check_id(page.after, "after")
        jobs, more = await service.list(tenant=tenant, kind="video", after=after, limit=page.limit, order=page.order)
        data = [Video.of(job) for job in jobs]
        ends = (data[0].id, data[-1].id) if data else (None, None)
        return VideoList(data=data, has_more=more, first_id=ends[0], last_id=ends[1])

    @routes.get("/{id}")
    async def retrieve_video(id: JobId, tenant: Tenant, response: Response) -> Video:
        """While it is unfinished, the header `openai-poll-after-ms` says when to ask again."""
        job = await _video(service, id, tenant)
        if not job.state.is_final:
            response.headers["openai-poll-after-ms"] = POLL_AFTER_MS
        return Video.of(job)

    @routes.delete("/{id}")
    async def delete_video(id: JobId, tenant: Tenant) -> VideoDeleted:
        """Removes a video and its files; an unfinished one is cancelled first."""
        await _video(service, id, tenant)
        await service.delete(id, tenant=tenant)
        return VideoDeleted(id=id)

    @routes.head("/{id}/content", include_in_schema=False)
    @routes.get("/{id}/content", response_class=Response, responses=FILE_RESPONSES)
    async def video_content(
        id: JobId, tenant: Tenant, query: Annotated[VideoContent, Query()], request: Request
    ) -> Response:
        """The video's file, or a picture of it."""
        await _video(service, id, tenant)
        is_video = query.variant == "video"
        artifact = await service.artifact(id, 0, "content" if is_video else query.variant, tenant=tenant)
        return await file_response(request, service.artifacts, artifact, id if is_video else f"{id}-{query.variant}")

    @routes.post("/{id}/remix", openapi_extra=body_of(VideoRemix))
    async def remix_video(id: JobId, request: Request, tenant: Tenant, key: IdempotencyKey) -> Video:
        """A new video with the source's seed, parameters and input image, and another prompt."""
        body = await read_body(request, config.limits)
        refuse_files(body)
        params = validate(VideoRemix, body.fields)
        source = await _video(service, id, tenant)
        remix = remix_request(source, params.prompt)
        with wire_names(VIDEO_NAMES):
            job = await service.submit(remix, tenant=tenant, idempotency_key=key, remixed_from=id)
            return Video.of(job)

    return routes


async def _video(service: Service, job_id: str, tenant: str | None) -> Job:
    job = await service.get(job_id, tenant=tenant)
    if job.kind != "video":
        raise NotFound(f"job {job_id} is an {job.kind}; see /v1/jobs/{job_id}", "id")
    return job
