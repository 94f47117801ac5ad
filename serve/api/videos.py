"""Videos, in the shape that the openai client sends and expects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request, Response

from raydiance.serve.api.body import read_body
from raydiance.serve.api.content import file_response
from raydiance.serve.api.docs import FILE_RESPONSES, body_of
from raydiance.serve.api.errors import wire_names
from raydiance.serve.api.headers import IdempotencyKey, JobId, check_id
from raydiance.serve.api.schemas import VideoContent, VideoCreation, VideoPage, VideoRemix
from raydiance.serve.api.translate import (
    VIDEO_NAMES,
    input_reference,
    refuse_files_except,
    refuse_unsupported,
    remix_request,
    video_request,
)
from raydiance.serve.api.validation import validate
from raydiance.serve.api.views import ErrorBody, Video, VideoDeleted, VideoList
from raydiance.serve.config import Config
from raydiance.serve.errors import NotFound
from raydiance.serve.storage.job import Job

if TYPE_CHECKING:
    from raydiance.serve.service import Service

POLL_AFTER_MS = "200"


def router(service: Service, config: Config) -> APIRouter:
    routes = APIRouter(prefix="/v1/videos", tags=["videos"], responses={"4XX": {"model": ErrorBody}})

    @routes.post("", openapi_extra=body_of(VideoCreation, "input_reference"))
    async def create_video(request: Request, key: IdempotencyKey) -> Video:
        """Accepts a video and returns at once. With an `input_reference`, that image is the first frame."""
        body = await read_body(request, config.limits)
        refuse_unsupported(body)
        reference = input_reference(body)
        params = validate(VideoCreation, body.fields)
        names = dict(VIDEO_NAMES)
        if params.seconds is not None and params.num_frames is None:
            names["num_frames"] = "seconds"
        with wire_names(names):
            return Video.of(await service.submit(video_request(params, reference), idempotency_key=key))

    @routes.get("")
    async def list_videos(page: Annotated[VideoPage, Query()]) -> VideoList:
        after = None if page.after is None else check_id(page.after, "after")
        jobs, more = await service.list(kind="video", after=after, limit=page.limit, order=page.order)
        data = [Video.of(job) for job in jobs]
        ends = (data[0].id, data[-1].id) if data else (None, None)
        return VideoList(data=data, has_more=more, first_id=ends[0], last_id=ends[1])

    @routes.get("/{id}")
    async def retrieve_video(id: JobId, response: Response) -> Video:
        """While it is unfinished, the header `openai-poll-after-ms` says when to ask again."""
        job = await _video(service, id)
        if not job.state.is_final:
            response.headers["openai-poll-after-ms"] = POLL_AFTER_MS
        return Video.of(job)

    @routes.delete("/{id}")
    async def delete_video(id: JobId) -> VideoDeleted:
        """Removes a video and its files; an unfinished one is cancelled first."""
        await _video(service, id)
        await service.delete(id)
        return VideoDeleted(id=id)

    @routes.head("/{id}/content", include_in_schema=False)
    @routes.get("/{id}/content", response_class=Response, responses=FILE_RESPONSES)
    async def video_content(id: JobId, query: Annotated[VideoContent, Query()], request: Request) -> Response:
        """The video's file, or a picture of it."""
        await _video(service, id)
        is_video = query.variant == "video"
        artifact = await service.artifact(id, 0, "content" if is_video else query.variant)
        return await file_response(request, service.artifacts, artifact, id if is_video else f"{id}-{query.variant}")

    @routes.post("/{id}/remix", openapi_extra=body_of(VideoRemix))
    async def remix_video(id: JobId, request: Request, key: IdempotencyKey) -> Video:
        """A new video with the source's seed, parameters and input image, and another prompt."""
        body = await read_body(request, config.limits)
        refuse_files_except(body)
        params = validate(VideoRemix, body.fields)
        source = await _video(service, id)
        remix = remix_request(source, params.prompt)
        with wire_names(VIDEO_NAMES):
            return Video.of(await service.submit(remix, idempotency_key=key, remixed_from=id))

    return routes


async def _video(service: Service, job_id: str) -> Job:
    job = await service.get(job_id)
    if job.kind != "video":
        raise NotFound(f"job {job_id} is an {job.kind}; see /v1/jobs/{job_id}", "id")
    return job
