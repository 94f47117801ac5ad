"""OpenAI-shaped parameters -> the native request. Pure; every refusal names the wire field."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

from raydiance.models.inputs import ImageRole
from raydiance.serve.api.body import Body
from raydiance.serve.api.schemas import ImageEdit, ImageGeneration, ImageParameters, Sampling, VideoCreation
from raydiance.serve.api.validation import shorten, shown, validate
from raydiance.serve.errors import InvalidRequest
from raydiance.serve.request import GenerationRequest, ImageInput, Source, TextInput
from raydiance.serve.storage.job import Job

SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")
# OpenAI's parameters that no family here honours, and why
REFUSED: Final[Mapping[str, str]] = {
    "style": "say it in the prompt",
    "mask": "the models served here take no mask",
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
    "inputs": "image",
    "inputs.": "image",
}
VIDEO_NAMES: Final = {
    "height": "size",
    "width": "size",
    "output.format": "output_format",
    "inputs": "input_reference",
    "inputs.": "input_reference",
}
# form fields that carry a file, and the role that the image has in the native request
ROLES: Final[Mapping[str, ImageRole]] = {
    "first_frame": "first_frame",
    "input_reference": "first_frame",
    "init": "init",
    "image": "init",
}


def refuse_unsupported(body: Body) -> None:
    for name in (*body.fields, *body.files):
        if name in REFUSED and body.fields.get(name, "") is not None:
            raise InvalidRequest(f"{name} is not supported: {REFUSED[name]}", name, "unsupported_parameter")


def refuse_files_except(body: Body, *names: str) -> None:
    for name in body.files:
        if name not in names:
            known = f"; known: {', '.join(names)}" if names else ""
            raise InvalidRequest(f"unknown file field '{shorten(name)}'{known}", shorten(name), "unknown_parameter")


def native_request(body: Body) -> GenerationRequest:
    """The native request as it came; uploaded files join its inputs."""
    values = dict(body.fields)
    if body.files:
        refuse_files_except(body, *ROLES)
        images = [_upload(body, name, role) for name, role in ROLES.items() if name in body.files]
        values["inputs"] = [*(values.get("inputs") or []), *images]
    return validate(GenerationRequest, values)


def generation_request(params: ImageGeneration) -> GenerationRequest:
    return _image_request(params, task="text-to-image")


def edit_request(params: ImageEdit, image: ImageInput) -> GenerationRequest:
    return _image_request(params, task="image-to-image", inputs=[image], strength=params.strength)


def _image_request(params: ImageParameters, **rest: Any) -> GenerationRequest:
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
            "model": params.model,
            "prompt": params.prompt,
            "n": params.n,
            "num_frames": 1,
            "previews": params.partial_images,
            "output": {"format": params.output_format, "compression": compression},
            "metadata": {**params.metadata, **{k: v for k, v in extra.items() if v is not None}},
        },
    )


def video_request(params: VideoCreation, reference: ImageInput | None) -> GenerationRequest:
    return validate(
        GenerationRequest,
        {
            **_sampling(params),
            **_size(params.size),
            "model": params.model,
            "task": "text-to-video" if reference is None else "image-to-video",
            "prompt": params.prompt,
            "inputs": [] if reference is None else [reference],
            "seconds": params.seconds,
            "num_frames": params.num_frames,
            "fps": params.fps,
            "output": {"format": params.output_format},
            "previews": params.previews,
            "webhook": params.webhook,
            "metadata": params.metadata,
        },
    )


def remix_request(source: Job, prompt: str) -> GenerationRequest:
    """The source's request, its seed and stored images among it, with another prompt."""
    inputs = [i for i in source.request.inputs if not (isinstance(i, TextInput) and i.role == "prompt")]
    return source.request.model_copy(update={"prompt": prompt, "inputs": inputs})


def edited_image(body: Body) -> ImageInput:
    """The one image of an edit: an uploaded file, or in JSON its URL."""
    refuse_files_except(body, "image")
    image = _reference(body, "image", "init")
    if image is None:
        raise InvalidRequest("image is required: the picture to edit", "image", "missing_required_parameter")
    return image


def input_reference(body: Body) -> ImageInput | None:
    """The first frame of a video: an uploaded file, or `{"image_url": URL}`."""
    refuse_files_except(body, "input_reference")
    return _reference(body, "input_reference", "first_frame")


def _reference(body: Body, name: str, role: ImageRole) -> ImageInput | None:
    value = body.fields.pop(name, None)
    if name in body.files:
        if value is not None:
            raise InvalidRequest(f"{name} is given as a file and as a field; give one", name)
        return _upload(body, name, role)
    if value is None:
        return None
    if isinstance(value, list):
        if len(value) != 1:
            raise InvalidRequest(f"{len(value)} images were sent in {name}; the limit is 1", name)
        value = value[0]
    if isinstance(value, dict):
        if unknown := set(value) - {"image_url"}:
            key = sorted(unknown)[0]
            why = "there is no files API; send the file" if key == "file_id" else "only image_url is known"
            raise InvalidRequest(f"{name}.{shorten(key)} is refused: {why}", f"{name}.{shorten(key)}")
        value = value.get("image_url")
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f'{name} must be a file or {{"image_url": URL}} (got {shown(value)})', name)
    return ImageInput(role=role, source=Source(url=value))


def _upload(body: Body, name: str, role: ImageRole) -> ImageInput:
    files = body.files[name]
    if len(files) != 1:
        raise InvalidRequest(f"{len(files)} files were sent as {name}; the limit is 1", name)
    if not files[0]:
        raise InvalidRequest(f"the file in {name} is empty", name)
    return _image(role, files[0])


def _image(role: ImageRole, data: bytes) -> ImageInput:
    return ImageInput(role=role, source=Source(b64=base64.b64encode(data).decode()))


def _sampling(params: Sampling) -> dict[str, Any]:
    names = ("seed", "num_inference_steps", "guidance_scale", "negative_prompt")
    return {name: getattr(params, name) for name in names}


def _size(size: str) -> dict[str, int]:
    if size == "auto":
        return {}
    match = SIZE.fullmatch(size)
    if match is None:
        raise InvalidRequest(f"size={shown(size)} must be WIDTHxHEIGHT in pixels, such as 512x512, or auto", "size")
    return {"width": int(match[1]), "height": int(match[2])}
