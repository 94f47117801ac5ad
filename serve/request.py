"""The native request: every HTTP route, the CLI and the Python handle translate into this. No torch."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from raydiance.models.inputs import IMAGE_ROLES, STANDARD, ImageRole, Role
from raydiance.models.spec import Task
from raydiance.models.tier import Tier

ImageFormat = Literal["png", "webp", "jpeg"]
VideoFormat = Literal["mp4", "webm"]
IMAGE_FORMATS: tuple[ImageFormat, ...] = get_args(ImageFormat)
MAX_SAMPLES = 10
MAX_PREVIEWS = 3
MAX_SECONDS = 30 * 86_400.0
GROUP_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class FamilyParameters(Strict):
    """Numbers that only some families take: those of `ModelCard.parameters`. Every route takes them by these names."""

    guidance_scale_2: float | None = Field(None, description="guidance of the expert for little noise (Wan 2.2 A14B)")
    true_cfg_scale: float | None = Field(None, description="classifier-free guidance of a guidance-distilled model")
    image_guidance_scale: float | None = Field(None, description="how strongly a reference picture steers")
    conditioning_scale: float | None = Field(None, description="how strongly references and video steer (VACE)")
    guidance_rescale: float | None = Field(None, description="how far guidance is kept from raising contrast (LTX)")
    stg_scale: float | None = Field(None, description="spatio-temporal guidance (LTX)")
    modality_scale: float | None = Field(None, description="how strongly sound and picture follow each other (LTX)")
    audio_guidance_scale: float | None = Field(None, description="guidance of the sound (LTX)")
    audio_stg_scale: float | None = Field(None, description="spatio-temporal guidance of the sound (LTX)")
    audio_modality_scale: float | None = Field(None, description="how strongly the sound follows the picture (LTX)")
    audio_guidance_rescale: float | None = Field(None, description="guidance_rescale of the sound (LTX)")


FAMILY_PARAMETERS: tuple[str, ...] = tuple(FamilyParameters.model_fields)


class Scheduling(Strict):
    """On what terms a request is done. Every route that generates takes them by these names."""

    service_tier: Tier | None = Field(
        None, description="interactive, standard or batch; left out: interactive where the caller waits, else standard"
    )
    slo_s: float | None = Field(
        None, gt=0, le=MAX_SECONDS, description="seconds in which it should be done; left out: by tier and size"
    )
    deadline_s: float | None = Field(
        None, gt=0, le=MAX_SECONDS, description="seconds after which nobody wants it: it is dropped then"
    )
    group: str | None = Field(None, pattern=GROUP_ID, description="an agent's round, a campaign: see /v1/groups")


SCHEDULING: tuple[str, ...] = tuple(Scheduling.model_fields)


class Source(Strict):
    """Where a file's bytes are: exactly one of a URL (`https:` or `data:`), base64, or an artifact stored before."""

    url: str | None = None
    b64: str | None = None
    artifact: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Source:
        if sum(v is not None for v in (self.url, self.b64, self.artifact)) != 1:
            raise ValueError("give exactly one of url, b64, artifact")
        return self


class ImageInput(Strict):
    """A picture. Without a role it takes the one that the task needs: `init` is noised and painted over, `first_frame`
    and `last_frame` are kept, a `reference` shows what is meant."""

    type: Literal["image"] = "image"
    role: ImageRole | None = None
    source: Source


class MaskInput(Strict):
    """Where to paint: white is painted, black is kept. A picture for every frame, or a video."""

    type: Literal["mask"] = "mask"
    source: Source


class Clip(Strict):
    """What a video was found to be. Sizes in pixels, upright; `fps` as the file has it."""

    width: int
    height: int
    num_frames: int
    fps: float


class VideoInput(Strict):
    """A video. In the role `video` it is worked on. A `previous` one is gone on from: its last frame is the first frame
    of what is made, and the result's file holds both.

    Size, `fps` and, for `video`, the length that a request leaves out are taken from it.
    """

    type: Literal["video"] = "video"
    role: Literal["video", "previous"] = "video"
    source: Source
    clip: Clip | None = Field(None, description="told by the server")


class TextInput(Strict):
    type: Literal["text"] = "text"
    role: Literal["prompt", "negative_prompt"] = "prompt"
    text: str


Input = Annotated[ImageInput | MaskInput | VideoInput | TextInput, Field(discriminator="type")]


class Output(Strict):
    """How the pixels are encoded. `format` is png, webp or jpeg for images, mp4 or webm for videos."""

    format: ImageFormat | VideoFormat | None = None
    compression: int | None = Field(None, ge=0, le=100, description="quality of jpeg and webp, in percent")


def _metadata(values: dict[str, str]) -> dict[str, str]:
    if len(values) > 16 or any(len(k) > 64 or len(v) > 512 for k, v in values.items()):
        raise ValueError("metadata takes at most 16 pairs, keys of 64 and values of 512 characters")
    return values


class GenerationRequest(FamilyParameters, Scheduling):
    """One job: a prompt, its inputs, and `n` samples that differ in their seed alone.

    What is left out takes the model's default. `seed` of sample i is `seed + i`; without a seed one is drawn and kept.
    """

    model: str | None = None
    task: Task | None = None
    prompt: str = ""
    negative_prompt: str = ""
    inputs: list[Input] = Field(default_factory=list, max_length=16)
    height: int | None = None
    width: int | None = None
    num_frames: int | None = None
    seconds: float | None = Field(None, gt=0, le=3600)
    fps: int | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    seed: int | None = None
    strength: float | None = None
    audio: bool | None = Field(None, description="whether a video has sound, where the model makes any")
    n: int = Field(1, ge=1, le=MAX_SAMPLES)
    previews: int = Field(0, ge=0, le=MAX_PREVIEWS, description="previews per sample, from the x0 estimate")
    output: Output = Output()
    webhook: str | None = Field(None, max_length=2048, description="URL that is told when the job has ended")
    metadata: Annotated[dict[str, str], AfterValidator(_metadata)] = Field(default_factory=dict)


def given(request: GenerationRequest, task: Task) -> list[tuple[Role, str]]:
    """Role and artifact key of what was stored with an accepted request, in its order."""
    files = [i for i in request.inputs if not isinstance(i, TextInput)]
    return [(role_of(i, task), i.source.artifact) for i in files if i.source.artifact is not None]


def given_video(request: GenerationRequest) -> VideoInput | None:
    return next((i for i in request.inputs if isinstance(i, VideoInput)), None)


def previous_video(request: GenerationRequest) -> VideoInput | None:
    """The video that the result goes on from, and is joined to."""
    return next((i for i in request.inputs if isinstance(i, VideoInput) and i.role == "previous"), None)


def role_of(item: ImageInput | MaskInput | VideoInput, task: Task) -> Role:
    """The role of an input; that of a picture without one follows from the task."""
    if isinstance(item, MaskInput):
        return "mask"
    if isinstance(item, VideoInput):
        return "first_frame" if item.role == "previous" else "video"
    images = [a.role for a in STANDARD[task] if a.role in IMAGE_ROLES]
    return item.role or (images[0] if images else "reference")
