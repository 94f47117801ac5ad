"""What clients send: OpenAI's parameters of images and videos, and ours beside them. Unknown ones are refused."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from raydiance.models.tier import Tier
from raydiance.serve.request import (
    GROUP_ID,
    MAX_PREVIEWS,
    MAX_SAMPLES,
    MAX_SECONDS,
    FamilyParameters,
    ImageFormat,
    Scheduling,
    VideoFormat,
)

MAX_PAGE = 100
MAX_GROUP_REQUESTS = 64


class Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Sampling(FamilyParameters, Scheduling):
    """Parameters of diffusion itself, on every route that generates. Left out, they take the model's defaults."""

    seed: int | None = Field(None, description="the same seed gives the same pixels; sample i uses seed + i")
    num_inference_steps: int | None = Field(None, description="denoising steps")
    guidance_scale: float | None = Field(None, description="how strongly the prompt steers (classifier-free guidance)")
    negative_prompt: str = Field("", description="what should not be seen")
    strength: float | None = Field(None, description="share of the schedule that is run; 1 forgets what was given")
    metadata: dict[str, str] = Field(default_factory=dict, description="up to 16 strings that are kept with the job")


class ImageParameters(Sampling):
    prompt: str
    model: str | None = Field(None, description="left out: the server's first model")
    n: int = Field(1, ge=1, le=MAX_SAMPLES, description="images, each of its own seed")
    size: str = Field("auto", description="WIDTHxHEIGHT in pixels, or auto for the model's default")
    response_format: Literal["b64_json", "url"] = "b64_json"
    output_format: ImageFormat = "png"
    output_compression: int | None = Field(None, ge=0, le=100, description="quality of jpeg and webp, in percent")
    quality: Literal["auto", "standard"] = Field("auto", description="there is one: set num_inference_steps and size")
    background: Literal["auto", "opaque"] = "auto"
    user: str | None = Field(None, max_length=512, description="kept in the job's metadata")
    safety_identifier: str | None = Field(None, max_length=512, description="kept in the job's metadata")
    stream: bool = False
    partial_images: int = Field(0, ge=0, le=MAX_PREVIEWS, description="previews per image while it streams")


class ImageGeneration(ImageParameters):
    """Body of `POST /v1/images/generations`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"prompt": "a red circle", "n": 2, "seed": 7}]})

    moderation: Literal["auto", "low"] = Field("auto", description="nothing is moderated")


class ImageEdit(ImageParameters):
    """Body of `POST /v1/images/edits`: the model edits by the prompt, or noises the image up to `strength`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"prompt": "the same, in blue", "strength": 0.6}]})

    input_fidelity: Literal["low"] = Field("low", description="strength is how much is kept")


class VideoParameters(Sampling):
    prompt: str
    model: str | None = Field(None, description="left out: the source's, or the server's first model")
    seconds: float | None = Field(None, gt=0, le=3600, description="taken to the nearest length the model makes")
    size: str = Field("auto", description="WIDTHxHEIGHT in pixels; auto: the given video's, or the model's default")
    num_frames: int | None = Field(None, description="instead of seconds")
    fps: int | None = Field(None, description="left out: the given video's, or the model's default")
    audio: bool | None = Field(None, description="whether it has sound, where the model makes any")
    output_format: VideoFormat = "mp4"
    previews: int = Field(0, ge=0, le=MAX_PREVIEWS, description="previews among the job's events")
    webhook: str | None = Field(None, max_length=2048, description="URL that is told when the video has ended")


class VideoCreation(VideoParameters):
    """Body of `POST /v1/videos`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"prompt": "a red circle moves left", "seconds": "4"}]})


class VideoEdit(VideoParameters):
    """Body of `POST /v1/videos/edits`: a video of the given one's size, rate and length, changed by the prompt."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"prompt": "the same, in blue", "video": {"id": "video_4f0c"}}]}
    )


class VideoExtension(VideoParameters):
    """Body of `POST /v1/videos/extensions`: `seconds` or `num_frames` are those of what is added."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"prompt": "it goes on", "seconds": "4", "video": {"id": "video_4f0c"}}]}
    )


class VideoRemix(Wire):
    """Body of `POST /v1/videos/{id}/remix`: the same seed and parameters, another prompt."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"prompt": "the same, at night"}]})

    prompt: str


class GroupCreation(Wire):
    """Body of `POST /v1/groups`. `service_tier` and `slo_s` are of those requests that give none."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"requests": [{"prompt": "a red circle", "num_frames": 1}], "deadline_s": 60}]}
    )

    requests: list[dict[str, Any]] = Field(
        min_length=1, max_length=MAX_GROUP_REQUESTS, description="each as `POST /v1/jobs` takes it"
    )
    id: str | None = Field(None, pattern=GROUP_ID, description="left out: one is made")
    atomic: bool = Field(False, description="all requests are accepted or none")
    service_tier: Tier | None = None
    slo_s: float | None = Field(None, gt=0, le=MAX_SECONDS, description="seconds in which each should be done")
    deadline_s: float | None = Field(
        None, gt=0, le=MAX_SECONDS, description="seconds from now after which nobody wants any of them"
    )
    max_gpu_seconds: float | None = Field(None, gt=0, description="budget of all jobs of the group together")


class VideoPage(Wire):
    """Query of `GET /v1/videos`."""

    after: str | None = Field(None, max_length=64, description="the last id of the page before")
    limit: int = Field(20, ge=1, le=MAX_PAGE)
    order: Literal["asc", "desc"] = "desc"


class JobPage(VideoPage):
    """Query of `GET /v1/jobs`."""

    kind: Literal["image", "video"] | None = None
    group: str | None = Field(None, max_length=64, description="the group that they are of")


class JobContent(Wire):
    """Query of `GET /v1/jobs/{id}/content`."""

    index: int = Field(0, ge=0, lt=MAX_SAMPLES, description="the sample")
    variant: Literal["content", "thumbnail", "spritesheet"] = "content"


class VideoContent(Wire):
    """Query of `GET /v1/videos/{id}/content`."""

    variant: Literal["video", "thumbnail", "spritesheet"] = "video"


class JobEvents(Wire):
    """Query of `GET /v1/jobs/{id}/events`."""

    after: int | None = Field(None, ge=0, lt=2**63, description="the id of the last event seen")
