"""What clients are answered: OpenAI's objects, made from jobs and model cards."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from pydantic import BaseModel

from raydiance.models.card import ModelCard
from raydiance.models.spec import Spec
from raydiance.serve.request import MAX_SAMPLES
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


class Video(BaseModel):
    """OpenAI's video object. A cancelled video is `failed` with the error code `cancelled`."""

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

    @classmethod
    def of(cls, job: Job) -> Video:
        spec = Spec.from_dict(job.specs[0])
        error = None
        if job.state is JobState.CANCELLED:
            error = VideoError(code="cancelled", message="the video was cancelled")
        elif job.error is not None:
            error = VideoError(code=job.error.code, message=job.error.message)
        asked = job.request.seconds
        return cls(
            id=job.id,
            model=job.model,
            status="failed" if job.state is JobState.CANCELLED else job.state.value,
            progress=job.progress,
            created_at=int(job.created_at),
            completed_at=None if job.completed_at is None else int(job.completed_at),
            expires_at=None if job.expires_at is None else int(job.expires_at),
            seconds=f"{spec.num_frames / spec.fps if asked is None else asked:g}",
            size=f"{spec.width}x{spec.height}",
            prompt=spec.prompt,
            remixed_from_video_id=job.remixed_from,
            error=error,
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
    attempt: int
    remixed_from: str | None
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


class TokenDetails(BaseModel):
    text_tokens: int
    image_tokens: int


class Usage(BaseModel):
    """What is counted: text in words, once per image; images in the transformer's tokens, i.e. latent patches.

    An edit's reference image is encoded at the size of the result and counts as many input tokens.
    """

    input_tokens: int
    input_tokens_details: TokenDetails
    output_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, specs: list[Spec], card: ModelCard) -> Usage:
        text = sum(len(s.prompt.split()) + len(s.negative_prompt.split()) for s in specs)
        out = sum(card.num_tokens(s.height, s.width, s.num_frames) for s in specs)
        image = out if specs[0].task == "image-to-image" else 0
        details = TokenDetails(text_tokens=text, image_tokens=image)
        return cls(
            input_tokens=text + image, input_tokens_details=details, output_tokens=out, total_tokens=text + image + out
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


class ModelLimits(BaseModel):
    """What a request may ask for. Sides are multiples of `size_multiple`, frames are `frame_stride * k + 1`."""

    size_multiple: int
    frame_stride: int
    max_side: int
    max_frames: int
    max_tokens: int
    max_steps: int
    max_prompt_chars: int
    max_guidance: float
    max_fps: int
    max_samples: int


class ModelView(BaseModel):
    """OpenAI's model object, and what the model can do."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "raydiance"
    family: str
    tasks: list[str]
    defaults: dict[str, int | float]
    limits: ModelLimits

    @classmethod
    def of(cls, card: ModelCard) -> ModelView:
        limits = {name: getattr(card, name) for name in ModelLimits.model_fields if name != "max_samples"}
        return cls(
            id=card.id,
            created=card.created,
            family=card.family,
            tasks=list(card.tasks),
            defaults=asdict(card.defaults),
            limits=ModelLimits(**limits, max_samples=MAX_SAMPLES),
        )


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelView]
