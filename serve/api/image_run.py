"""One image request while its caller is there: wait for its job or stream it, and drop it if the caller goes away."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from raydiance.models.spec import Spec
from raydiance.serve.api import sse
from raydiance.serve.api.errors import TimedOut
from raydiance.serve.api.schemas import ImageParameters
from raydiance.serve.api.views import ImagesResponse, ImageView, Usage
from raydiance.serve.background import spawn
from raydiance.serve.errors import Conflict, GenerationFailed
from raydiance.serve.request import ImageInput
from raydiance.serve.storage.job import Artifact, Job, JobState, now

if TYPE_CHECKING:
    from raydiance.serve.service import Service


class ImageRun:
    """Args:
    event: prefix of the streamed events' types.
    keep: leave the job running when the caller goes away or the time is up.
    """

    def __init__(self, service: Service, job: Job, params: ImageParameters, event: str, *, keep: bool) -> None:
        self._service = service
        self._job = job
        self._has_ended = False
        self._params = params
        self._event = event
        self._keep = keep
        self._timeout_s = service.config.limits.sync_timeout_s
        self._deadline = time.monotonic() + self._timeout_s

    async def wait(self, request: Request) -> ImagesResponse:
        """Raises GenerationFailed, Conflict (cancelled by somebody else), TimedOut."""
        ended = asyncio.ensure_future(self._service.wait(self._job))
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({ended, gone}, timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                raise ClientDisconnect if gone.done() else self._timed_out()
            self._has_ended = True
            job = _completed(ended.result())
        finally:
            gone.cancel()
            ended.cancel()
            self._close()
        base_url = str(request.base_url).rstrip("/")
        images = [await self._image(artifact, base_url) for artifact in _images(job)]
        specs = [Spec.from_dict(s) for s in job.specs]
        return ImagesResponse(
            created=int(job.created_at),
            data=images,
            output_format=self._params.output_format,
            size=f"{specs[0].width}x{specs[0].height}",
            usage=Usage.of(specs, await self._service.card(job.model), _num_given(job), job.usage()),
        )

    async def _image(self, artifact: Artifact, base_url: str) -> ImageView:
        if self._params.response_format == "url":
            url = f"{base_url}/v1/jobs/{self._job.id}/content?index={artifact.index}"
            return ImageView(url=url, seed=artifact.seed)
        return ImageView(b64_json=await self._read(artifact), seed=artifact.seed)

    def stream(self) -> StreamingResponse:
        return sse.EventStream(self._frames(), self._close)

    async def _frames(self) -> AsyncIterator[bytes]:
        events = self._service.events(self._job.id, tenant=self._job.tenant, job=self._job)
        async for event in sse.with_heartbeats(events, min(sse.HEARTBEAT_S, self._timeout_s)):
            self._has_ended = event is not None and event.is_final
            if not self._has_ended and time.monotonic() >= self._deadline:
                raise self._timed_out()
            if event is None:
                yield sse.HEARTBEAT
            elif event.type == "preview":
                yield self._partial(event.data)
        job = _completed(await self._service.get(self._job.id, tenant=self._job.tenant))
        card = await self._service.card(job.model)
        for artifact in _images(job):
            used = job.usage(share=1 / len(job.specs))
            usage = Usage.of([Spec.from_dict(job.specs[artifact.index])], card, _num_given(job), used)
            data = await self._read(artifact)
            yield self._encode("completed", data, artifact.index, usage=usage.model_dump())

    def _partial(self, preview: dict[str, Any]) -> bytes:
        return self._encode(
            "partial_image",
            preview["b64"],
            preview["index"],
            output_format=preview["format"],
            partial_image_index=preview["preview_index"],
        )

    def _encode(self, kind: str, b64_json: str, index: int, **rest: Any) -> bytes:
        """`index` is ours: which of the `n` images it is."""
        spec = Spec.from_dict(self._job.specs[index])
        data = {
            "type": f"{self._event}.{kind}",
            "b64_json": b64_json,
            "background": "opaque",
            "created_at": int(now()),
            "output_format": self._params.output_format,
            "quality": "auto",
            "size": f"{spec.width}x{spec.height}",
            "index": index,
            "seed": spec.seed,
            **rest,
        }
        return sse.encode(f"{self._event}.{kind}", data)

    async def _read(self, artifact: Artifact) -> str:
        return base64.b64encode(await self._service.artifacts.get(artifact.key)).decode()

    def _timed_out(self) -> TimedOut:
        outcome = f"job {self._job.id} goes on" if self._keep else "its job was cancelled"
        return TimedOut(f"the image took longer than {self._timeout_s:g} s (limits.sync_timeout_s); {outcome}")

    def _close(self) -> None:
        """The caller has what it came for, or is no longer there: nobody waits for unfinished work."""
        if not self._has_ended and not self._keep:
            spawn(self._service.cancel(self._job.id, tenant=self._job.tenant))


def _num_given(job: Job) -> int:
    return sum(isinstance(i, ImageInput) for i in job.request.inputs)


def _images(job: Job) -> list[Artifact]:
    return sorted((a for a in job.artifacts if a.variant == "content"), key=lambda a: a.index)


def _completed(job: Job) -> Job:
    if job.state is JobState.FAILED:
        error = job.error
        reason, code = (error.message, error.code) if error else ("no reason was kept", None)
        raise GenerationFailed(f"job {job.id} failed: {reason}", error.param if error else None, code)
    if job.state is not JobState.COMPLETED:
        raise Conflict(f"job {job.id} was cancelled", "id", "cancelled")
    return job


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue
