"""Raydiance from Python, over a Ray Serve handle: `raydiance.connect()`. No torch.

Works from every driver of the cluster. From a Ray Client (`ray://`), where Serve does not stream, events come by long
poll. Errors are those that HTTP maps to statuses (`raydiance.serve.errors`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import ray
from pydantic import ValidationError
from ray import serve
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException

from raydiance.models.card import ModelCard
from raydiance.models.inputs import ImageRole
from raydiance.serve.attachments import attach
from raydiance.serve.cluster import join_cluster
from raydiance.serve.errors import GenerationFailed, InvalidRequest, RaydianceError, Unavailable
from raydiance.serve.events import Event
from raydiance.serve.keywords import Asked, Fields, GroupTerms
from raydiance.serve.request import GenerationRequest, ImageFormat, Output, VideoFormat

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

    from raydiance.serve.attachments import FileLike, ImageLike

LONG_POLL_S = 5.0
RECONNECT_S = 0.5
MAX_CUTS = 5
FILES = ("image", "image_role", "last_frame", "references", "video", "mask")


def connect(address: str | None = None, app: str = "raydiance") -> Client:
    """A client of the Raydiance application on a Ray cluster.

    Args:
        address: of the cluster, as `ray.init` takes it (`ray://host:10001` too); None for the one that this process is
            connected to, or else the one of this machine or `$RAY_ADDRESS`.
        app: the name that it is deployed under.

    Raises:
        Unavailable: there is no such cluster, there are several to choose from, it refuses this process's Ray token, or
            the application does not run on it.
        RaydianceError: an address, and this process is connected already.
    """
    if not ray.is_initialized():
        join_cluster(address)
    elif address is not None:
        raise RaydianceError("this process is connected to a Ray cluster already: connect() without an address")
    try:
        handle = serve.get_app_handle(app)
    except RayServeException as e:
        running = ", ".join(f"'{name}'" for name in sorted(serve.status().applications))
        others = f"it runs {running}; pass app=…" if running else "it runs none; start one with `serve run`"
        raise Unavailable(f"application '{app}' does not run on this cluster: {others}") from e
    return Client(handle, streams=not _is_ray_client())


class Client:
    """Args:
    handle: of the application's ingress.
    streams: whether the connection can stream; otherwise events come by long poll.
    """

    def __init__(self, handle: DeploymentHandle[Any], *, streams: bool = True) -> None:
        self._handle = handle
        self._streams = streams

    def generate(
        self,
        prompt: str,
        *,
        image: ImageLike | None = None,
        image_role: ImageRole | None = None,
        last_frame: ImageLike | None = None,
        references: Sequence[ImageLike] = (),
        video: FileLike | None = None,
        mask: ImageLike | None = None,
        output_format: ImageFormat | VideoFormat | None = None,
        idempotency_key: str | None = None,
        **fields: Unpack[Fields],
    ) -> RunningJob:
        """Starts a job; returns at once.

        Args:
            image: a file, its bytes, or a Pillow image; so are the other pictures.
            image_role: `first_frame` begins a video with the image, `init` starts an image from it; None: as the task
                needs it.
            last_frame: ends the video.
            references: show what is meant.
            video: a file or its bytes; it is worked on.
            mask: where to paint, white; a picture for every frame, or a video.
            idempotency_key: the same key with the same request gives the same job.

        Raises:
            InvalidRequest: names the field and the limit.
        """
        request = _request(
            prompt,
            image=image,
            image_role=image_role,
            last_frame=last_frame,
            references=references,
            video=video,
            mask=mask,
            output_format=output_format,
            **fields,
        )
        job = self._call("submit", request, idempotency_key)
        return RunningJob(self, str(job["id"]))

    def job(self, job_id: str) -> RunningJob:
        """A job that was started before, here or elsewhere; raises NotFound."""
        self._call("job", job_id)
        return RunningJob(self, job_id)

    def quote(self, prompt: str, **asked: Unpack[Asked]) -> dict[str, Any]:
        """What the same call of `generate` would take, when it would be done, and whether it would be let in now.

        As `POST /v1/quotes` answers it. Nothing is done for it.
        """
        quote: dict[str, Any] = self._call("quote", _request(prompt, **asked))
        return quote

    def create_group(self, requests: Sequence[dict[str, Any]], **terms: Unpack[GroupTerms]) -> dict[str, Any]:
        """Starts jobs that belong together. Later ones join it: `generate(…, group=id)`.

        Args:
            requests: each as `POST /v1/jobs` takes it.

        Returns:
            The group, as `POST /v1/groups` answers it: `requests` has the job or the error of each.

        Raises:
            Conflict: the id was used before. With `atomic`, also whatever one of the requests is refused for.
        """
        group: dict[str, Any] = self._call("create_group", {**terms, "requests": list(requests)})
        return group

    def group(self, group_id: str) -> dict[str, Any]:
        """How far it is, what it has used, and its newest jobs' ids; raises NotFound."""
        group: dict[str, Any] = self._call("group", group_id)
        return group

    def cancel_group(self, group_id: str) -> dict[str, Any]:
        """Stops all of its unfinished jobs, each within one step."""
        group: dict[str, Any] = self._call("cancel_group", group_id)
        return group

    def models(self) -> list[ModelCard]:
        """What is served, and what each can do."""
        return [ModelCard.from_dict(card) for card in self._call("model_cards")]

    def _call(self, method: str, *args: Any) -> Any:
        try:
            return getattr(self._handle, method).remote(*args).result()
        except (RayError, DeploymentUnavailableError) as e:
            raise _unwrapped(e) from None

    def _batches(self, job_id: str, after: int) -> Iterator[list[Event]]:
        """Events above `after`, as they come; ends when the connection is cut or the stream has."""
        if not self._streams:
            yield _parsed(self._call("events_since", job_id, after, LONG_POLL_S))
            return
        stream: Any = self._handle.options(stream=True).events.remote(job_id, after)
        try:
            for batch in stream:
                yield _parsed(batch)
        except (RayError, DeploymentUnavailableError) as e:
            raise _unwrapped(e) from None
        finally:
            stream.cancel()


class RunningJob:
    """A job, wherever it runs. Losing this object does not stop it."""

    def __init__(self, client: Client, job_id: str) -> None:
        self.id = job_id
        self._client = client

    def __repr__(self) -> str:
        return f"RunningJob({self.id!r})"

    def job(self) -> dict[str, Any]:
        """As `GET /v1/jobs/{id}` gives it: status, progress, parameters, outputs, seconds per stage."""
        job: dict[str, Any] = self._client._call("job", self.id)
        return job

    def events(self, after: int = 0) -> Iterator[Event]:
        """Events with an id above `after`, to the final one; goes on where the connection was cut."""
        cuts = 0
        while True:
            try:
                for batch in self._client._batches(self.id, after):
                    cuts = 0
                    for event in batch:
                        after = event.id
                        yield event
                        if event.is_final:
                            return
            except Unavailable:
                cuts += 1
                if cuts > MAX_CUTS:
                    raise
                time.sleep(RECONNECT_S * cuts)

    def wait(self) -> dict[str, Any]:
        """The job when it has ended, however it did."""
        for _ in self.events():
            pass
        return self.job()

    def result(self) -> list[bytes]:
        """The files, one a sample, when it has completed; raises GenerationFailed if it failed or was cancelled."""
        job = self.wait()
        if job["status"] != "completed":
            error = job.get("error") or {}
            reason = error.get("message") or f"it is {job['status']}"
            raise GenerationFailed(f"job {self.id}: {reason}", error.get("param"), error.get("code") or job["status"])
        return [self._client._call("content", self.id, int(item["index"])) for item in job["outputs"]]

    def save(self, path: str | PathLike[str]) -> list[Path]:
        """Waits and writes the files: `path` itself, or NAME-1, NAME-2, … for several samples."""
        target, files = Path(path), self.result()
        paths = [target] if len(files) == 1 else [target.with_stem(f"{target.stem}-{i + 1}") for i in range(len(files))]
        for file, content in zip(paths, files, strict=True):
            file.write_bytes(content)
        return paths

    def why(self) -> dict[str, Any]:
        """Where it is, what it waits for, and what the scheduler decided of it."""
        why: dict[str, Any] = self._client._call("why", self.id)
        return why

    def cancel(self) -> dict[str, Any]:
        """Stops it within one step; a finished job stays as it is."""
        job: dict[str, Any] = self._client._call("cancel", self.id)
        return job


def _request(prompt: str, **asked: Any) -> dict[str, Any]:
    """The native request. Raises InvalidRequest."""
    files = {name: asked.pop(name) for name in FILES if name in asked}
    inputs, output = attach(**files), Output(format=asked.pop("output_format", None))
    try:
        request = GenerationRequest(prompt=prompt, inputs=inputs, output=output, **asked)
    except ValidationError as e:
        first = e.errors()[0]
        raise InvalidRequest(str(first["msg"]), ".".join(map(str, first["loc"]))) from e
    return request.model_dump(mode="json", exclude_none=True)


def _parsed(batch: list[dict[str, Any]]) -> list[Event]:
    return [Event.model_validate(event) for event in batch]


def _unwrapped(error: Exception) -> Exception:
    """The error that our own code raised in the cluster, or Unavailable if it was the cluster's."""
    cause = error.cause if isinstance(error, RayTaskError) else None
    if isinstance(cause, RaydianceError):
        return cause
    if isinstance(error, RayActorError | DeploymentUnavailableError):
        return Unavailable(f"a replica died or is away: {error}")
    return error if cause is None else RaydianceError(f"{type(cause).__name__}: {cause}")


def _is_ray_client() -> bool:
    from ray.util.client import ray as client

    return bool(client.is_connected())
