"""What clients are answered: OpenAI's objects, made from jobs and model cards."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from raydiance.models.card import ModelCard
from raydiance.models.spec import Spec
from raydiance.serve.request import previous_video
from raydiance.serve.storage.job import Job, JobState

VideoStatus = Literal["queued", "in_progress", "completed", "failed"]


class ErrorView(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """OpenAI's error body, on every status of 400 and above."""

    error: ErrorView


class VideoError(BaseModel):
    code: str
    message: str


class GpuSeconds(BaseModel):
    """Seconds of a device, by stage."""

    text_encode: float
    denoise: float
    decode: float
    total: float


class JobUsage(BaseModel):
    """`cost` is GPU-seconds times the price that was agreed when the job was accepted."""

    gpu_seconds: GpuSeconds
    cost: float


class Video(BaseModel):
    """OpenAI's video object. A cancelled video is `failed` with the error code `cancelled`.

    `seconds` of an extension are those of the whole file. An edit or extension of a video that was made here names it
    in `remixed_from_video_id`, as a remix does.
    """

    id: str
    object: Literal["video"] = "video"
    model: str
    status: VideoStatus
    progress: int
    created_at: int
    completed_at: int | None
    expires_at: int | None
    seconds: str
    size: str
    prompt: str
    remixed_from_video_id: str | None
    error: VideoError | None
    usage: JobUsage | None

    @classmethod
    def of(cls, job: Job) -> Video:
        spec = Spec.from_dict(job.specs[0])
        error = None
        if job.state is JobState.CANCELLED:
            error = VideoError(code="cancelled", message="the video was cancelled")
        elif job.error is not None:
            error = VideoError(code=job.error.code, message=job.error.message)
        num_frames, asked = spec.num_frames, job.request.seconds
        previous = previous_video(job.request)
        if previous is not None and previous.clip is not None:
            num_frames, asked = num_frames + previous.clip.num_frames - 1, None
        return cls(
            id=job.id,
            model=job.model,
            status="failed" if job.state is JobState.CANCELLED else job.state.value,
            progress=job.progress,
            created_at=int(job.created_at),
            completed_at=None if job.completed_at is None else int(job.completed_at),
            expires_at=None if job.expires_at is None else int(job.expires_at),
            seconds=f"{num_frames / spec.fps if asked is None else asked:g}",
            size=f"{spec.width}x{spec.height}",
            prompt=spec.prompt,
            remixed_from_video_id=job.remixed_from,
            error=error,
            usage=None if (used := job.usage()) is None else JobUsage.model_validate(used),
        )


class VideoList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Video]
    has_more: bool
    first_id: str | None
    last_id: str | None


class VideoDeleted(BaseModel):
    id: str
    object: Literal["video.deleted"] = "video.deleted"
    deleted: Literal[True] = True


class JobView(BaseModel):
    """A job. `parameters` are those of its first sample; sample i has `seed + i`."""

    id: str
    object: Literal["job"]
    kind: Literal["image", "video"]
    status: Literal["queued", "in_progress", "completed", "failed", "cancelled"]
    model: str
    task: str
    progress: int
    created_at: int
    started_at: int | None
    completed_at: int | None
    expires_at: int | None
    n: int
    parameters: dict[str, Any]
    outputs: list[dict[str, Any]]
    error: ErrorView | None
    timings: dict[str, float]
    usage: JobUsage | None
    attempt: int
    service_tier: str
    group: str | None
    remixed_from: str | None
    tenant: str
    metadata: dict[str, str]


class JobList(BaseModel):
    object: Literal["list"] = "list"
    data: list[JobView]
    has_more: bool
    first_id: str | None
    last_id: str | None


class JobDeleted(BaseModel):
    id: str
    object: Literal["job.deleted"] = "job.deleted"
    deleted: Literal[True] = True


class DecisionView(BaseModel):
    """Something that was decided at a step of its samples, and how often."""

    decision: str
    meaning: str
    count: int


class WhyView(BaseModel):
    """Where a job is, in a sentence; what it waits for, null where it does not; for how many seconds it waited until it
    was begun; and what was decided of its samples, which is known when it has completed."""

    id: str
    object: Literal["job.why"]
    status: Literal["queued", "in_progress", "completed", "failed", "cancelled"]
    where: str
    waits: str | None
    waited_s: float
    attempt: int
    decisions: list[DecisionView]


class TokenDetails(BaseModel):
    text_tokens: int
    image_tokens: int


class Usage(BaseModel):
    """What is counted: text in words, once per image; images in the transformer's tokens, i.e. latent patches.

    Each image that was given counts as one of the result's size, whatever the model scales it to. `gpu_seconds` and
    `cost` are ours; null where they are not known.
    """

    input_tokens: int
    input_tokens_details: TokenDetails
    output_tokens: int
    total_tokens: int
    gpu_seconds: GpuSeconds | None
    cost: float | None

    @classmethod
    def of(cls, specs: list[Spec], card: ModelCard, num_given: int, used: dict[str, Any] | None) -> Usage:
        """Args:
        num_given: images that every sample was made from.
        used: of `Job.usage`, for these specs.
        """
        text = sum(len(s.prompt.split()) + len(s.negative_prompt.split()) for s in specs)
        out = sum(card.num_tokens(s.height, s.width, s.num_frames) for s in specs)
        image = out * num_given
        details = TokenDetails(text_tokens=text, image_tokens=image)
        return cls(
            input_tokens=text + image,
            input_tokens_details=details,
            output_tokens=out,
            total_tokens=text + image + out,
            gpu_seconds=None if used is None else GpuSeconds.model_validate(used["gpu_seconds"]),
            cost=None if used is None else used["cost"],
        )


class ImageView(BaseModel):
    """`b64_json` or `url`, as `response_format` asked; `seed` makes the same image again."""

    b64_json: str | None = None
    url: str | None = None
    seed: int


class ImagesResponse(BaseModel):
    created: int
    data: list[ImageView]
    background: Literal["opaque"] = "opaque"
    output_format: str
    size: str
    usage: Usage
