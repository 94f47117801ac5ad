"""The native request: every HTTP route, the CLI and the Python handle translate into this. No torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from raydiance.models.card import ModelCard
from raydiance.models.spec import FieldError, Spec, Task

ImageRole = Literal["first_frame", "init"]
ImageFormat = Literal["png", "webp", "jpeg"]
VideoFormat = Literal["mp4", "webm"]
MAX_SAMPLES = 10
MAX_PREVIEWS = 3


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


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
    type: Literal["image"] = "image"
    role: ImageRole = "first_frame"
    source: Source


class MaskInput(Strict):
    type: Literal["mask"] = "mask"
    source: Source


class VideoInput(Strict):
    type: Literal["video"] = "video"
    source: Source


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


class GenerationRequest(Strict):
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
    n: int = Field(1, ge=1, le=MAX_SAMPLES)
    previews: int = Field(0, ge=0, le=MAX_PREVIEWS, description="previews per sample, from the x0 estimate")
    output: Output = Output()
    webhook: str | None = Field(None, max_length=2048, description="URL that is told when the job has ended")
    metadata: Annotated[dict[str, str], AfterValidator(_metadata)] = Field(default_factory=dict)

    def image_roles(self) -> list[str]:
        return [i.role for i in self.inputs if isinstance(i, ImageInput)]


def resolve(request: GenerationRequest, card: ModelCard, seed: int) -> list[Spec]:
    """The request's samples, with the model's defaults filled in and every limit checked. Pure.

    Args:
        seed: used when the request names none.

    Raises:
        FieldError: names the field, the value and the limit.
    """
    for i, item in enumerate(request.inputs):
        if isinstance(item, MaskInput | VideoInput):
            raise FieldError(f"inputs.{i}.type", f"model '{card.id}' takes no '{item.type}' input")
    roles = request.image_roles()
    if len(set(roles)) != len(roles):
        raise FieldError("inputs", f"each image role may be given once; got {', '.join(roles)}")
    task = request.task or _infer_task(request, roles)
    needed = {"image-to-video": "first_frame", "image-to-image": "init"}.get(task)
    for role in roles:
        if role != needed:
            raise FieldError("inputs", f"task '{task}' takes no image of role '{role}'")
    if needed and needed not in roles:
        raise FieldError("inputs", f"task '{task}' needs an image of role '{needed}'")
    base = _base_spec(request, card, task, seed if request.seed is None else request.seed)
    return [card.check(Spec(**{**base, "seed": base["seed"] + i})) for i in range(request.n)]


def _infer_task(request: GenerationRequest, roles: list[str]) -> Task:
    if "first_frame" in roles:
        return "image-to-video"
    if "init" in roles:
        return "image-to-image"
    return "text-to-image" if request.num_frames == 1 else "text-to-video"


def _base_spec(request: GenerationRequest, card: ModelCard, task: Task, seed: int) -> dict[str, Any]:
    d = card.defaults
    video = task in ("text-to-video", "image-to-video")
    fps = d.fps if request.fps is None else request.fps
    frames = request.num_frames
    if request.seconds is not None:
        if frames is not None:
            raise FieldError("seconds", "give seconds or num_frames, not both")
        if not video:
            raise FieldError("seconds", f"task '{task}' makes no video")
        stride = card.frame_stride
        frames = max(0, round((request.seconds * fps - 1) / stride)) * stride + 1
    if frames is None:
        frames = d.num_frames if video else 1
    text = {"prompt": request.prompt, "negative_prompt": request.negative_prompt}
    for i, item in enumerate(request.inputs):
        if isinstance(item, TextInput):
            if text[item.role]:
                raise FieldError(f"inputs.{i}", f"{item.role} is given twice")
            text[item.role] = item.text
    if request.strength is not None and task != "image-to-image":
        raise FieldError("strength", f"strength={request.strength} is for image-to-image; this is {task}")
    suffixes = ("mp4", "webm") if video else ("png", "webp", "jpeg")
    if request.output.format is not None and request.output.format not in suffixes:
        raise FieldError("output.format", f"'{request.output.format}' is not one of {', '.join(suffixes)} for {task}")
    return {
        "model": card.id,
        "task": task,
        **text,
        "height": d.height if request.height is None else request.height,
        "width": d.width if request.width is None else request.width,
        "num_frames": frames,
        "num_inference_steps": d.num_inference_steps
        if request.num_inference_steps is None
        else request.num_inference_steps,
        "guidance_scale": d.guidance_scale if request.guidance_scale is None else request.guidance_scale,
        "seed": seed,
        "fps": fps,
        "strength": (d.strength if request.strength is None else request.strength) if task == "image-to-image" else 1.0,
    }
