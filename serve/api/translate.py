"""OpenAI-shaped parameters -> the native request. Pure; every refusal names the wire field."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from raydiance.models.card import ModelCard
from raydiance.models.spec import Task
from raydiance.serve.api.body import Body
from raydiance.serve.api.fields import FIELDS, File, Given, take_inputs
from raydiance.serve.api.schemas import ImageEdit, ImageGeneration, ImageParameters, Sampling, VideoParameters
from raydiance.serve.api.validation import validate
from raydiance.serve.complaints import shown
from raydiance.serve.errors import InvalidRequest
from raydiance.serve.request import FAMILY_PARAMETERS, SCHEDULING, GenerationRequest, ImageInput, TextInput
from raydiance.serve.samples import infer_task
from raydiance.serve.storage.job import Job

SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")
# OpenAI's parameters that no family here honours, and why
REFUSED: Final[Mapping[str, str]] = {
    "style": "say it in the prompt",
    "markup": "the models served here take no markup",
    "complexity": "set num_inference_steps",
    "svg": "the models served here make pixels",
    "frame_count": "the models served here make no animated images",
    "frame_duration_ms": "the models served here make no animated images",
}
IMAGE_NAMES: Final = {
    "height": "size",
    "width": "size",
    "output.format": "output_format",
    "output.compression": "output_compression",
    "previews": "partial_images",
}
VIDEO_NAMES: Final = {
    "height": "size",
    "width": "size",
    "output.format": "output_format",
}


def refuse_unsupported(body: Body) -> None:
    for name in (*body.fields, *body.files):
        if name in REFUSED and body.fields.get(name, "") is not None:
            raise InvalidRequest(f"{name} is not supported: {REFUSED[name]}", name, "unsupported_parameter")


def native_request(body: Body) -> GenerationRequest:
    """The native request as it came; what was sent in fields of their own joins its inputs."""
    given = take_inputs(body)
    values = dict(body.fields)
    listed = values.get("inputs") or []
    if given.inputs and isinstance(listed, list):
        values["inputs"] = [*listed, *given.inputs]
    return validate(GenerationRequest, values, also=FIELDS)


def generation_request(params: ImageGeneration, given: Given) -> GenerationRequest:
    return _image_request(params, given, task="text-to-image")


def edit_request(params: ImageEdit, given: Given, card: ModelCard) -> GenerationRequest:
    """The model's own editing if it has any, else an image that starts from the given one."""
    if not any(isinstance(i, ImageInput) for i in given.inputs):
        raise InvalidRequest("image is required: the picture to edit", "image", "missing_required_parameter")
    request = _image_request(params, given)
    return request.model_copy(update={"task": infer_task(request, card, ("image-edit", "image-to-image"))})


def _image_request(params: ImageParameters, given: Given, **rest: Any) -> GenerationRequest:
    if params.stream and params.response_format == "url":
        raise InvalidRequest("response_format='url' cannot be streamed; take b64_json", "response_format")
    if params.partial_images and not params.stream:
        raise InvalidRequest(f"partial_images={params.partial_images} needs stream=true", "partial_images")
    compression = params.output_compression
    if compression is not None and params.output_format == "png":
        if compression != 100:
            raise InvalidRequest(f"output_compression={compression} is for jpeg and webp", "output_compression")
        compression = None
    extra = {"user": params.user, "safety_identifier": params.safety_identifier}
    return validate(
        GenerationRequest,
        {
            **_sampling(params),
            **rest,
            **_size(params.size),
            "service_tier": params.service_tier or "interactive",  # somebody waits for the answer
            "model": params.model,
            "prompt": params.prompt,
            "inputs": given.inputs,
            "n": params.n,
            "num_frames": 1,
            "previews": params.partial_images,
            "output": {"format": params.output_format, "compression": compression},
            "metadata": {**params.metadata, **{k: v for k, v in extra.items() if v is not None}},
        },
    )


def video_request(
    params: VideoParameters, inputs: Sequence[File], card: ModelCard, among: Sequence[Task]
) -> GenerationRequest:
    """Args:
    among: tasks that the route stands for; the inputs tell which.
    """
    request = validate(
        GenerationRequest,
        {
            **_sampling(params),
            **_size(params.size),
            "model": params.model or card.id,
            "prompt": params.prompt,
            "inputs": list(inputs),
            "seconds": params.seconds,
            "num_frames": params.num_frames,
            "fps": params.fps,
            "audio": params.audio,
            "output": {"format": params.output_format},
            "previews": params.previews,
            "webhook": params.webhook,
            "metadata": params.metadata,
        },
    )
    return request.model_copy(update={"task": infer_task(request, card, among)})


def remix_request(source: Job, prompt: str) -> GenerationRequest:
    """The source's request, its seed and stored images among it, with another prompt and on terms of its own."""
    inputs = [i for i in source.request.inputs if not (isinstance(i, TextInput) and i.role == "prompt")]
    return source.request.model_copy(update={"prompt": prompt, "inputs": inputs, **dict.fromkeys(SCHEDULING)})


def _sampling(params: Sampling) -> dict[str, Any]:
    names = ("seed", "num_inference_steps", "guidance_scale", "negative_prompt", "strength")
    return {name: getattr(params, name) for name in (*names, *FAMILY_PARAMETERS, *SCHEDULING)}


def _size(size: str) -> dict[str, int]:
    if size == "auto":
        return {}
    match = SIZE.fullmatch(size)
    if match is None:
        raise InvalidRequest(f"size={shown(size)} must be WIDTHxHEIGHT in pixels, such as 512x512, or auto", "size")
    return {"width": int(match[1]), "height": int(match[2])}
