"""From a request to the samples that it asks for, every default filled in and every limit checked. Pure, no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from raydiance.models.card import ModelCard
from raydiance.models.inputs import Role
from raydiance.models.spec import TASKS, VIDEO_TASKS, FieldError, Spec, Task
from raydiance.serve.request import (
    FAMILY_PARAMETERS,
    IMAGE_FORMATS,
    Clip,
    GenerationRequest,
    ImageInput,
    TextInput,
    given_video,
    previous_video,
    role_of,
)


def resolve(request: GenerationRequest, card: ModelCard, seed: int) -> list[Spec]:
    """The request's samples, with the model's defaults filled in and every limit checked. Pure.

    Args:
        seed: used when the request names none.

    Raises:
        FieldError: names the field, the value and the limit.
    """
    task = request.task or infer_task(request, card)
    _check_inputs(request, card, task)
    base = _base_spec(request, card, task, seed if request.seed is None else request.seed)
    specs = [card.check(Spec(**{**base, "seed": base["seed"] + i})) for i in range(request.n)]
    _check_honoured(request, card, specs[0])
    return specs


def default_spec(card: ModelCard, num_inference_steps: int) -> Spec:
    """The model's first task at its default size: what a warm-up runs."""
    task, d = card.tasks[0], card.defaults
    return Spec(
        model=card.id,
        task=task,
        prompt="warm-up",
        height=d.height,
        width=d.width,
        num_frames=d.num_frames if task in VIDEO_TASKS else 1,
        num_inference_steps=num_inference_steps,
        guidance_scale=d.guidance_scale,
        seed=0,
        fps=d.fps,
        strength_rounds_up=card.strength_rounds_up,
        audio=card.has_audio and task in VIDEO_TASKS,
        extra=card.fill({}, d.guidance_scale),
    )


def infer_task(request: GenerationRequest, card: ModelCard, among: Sequence[Task] = TASKS) -> Task:
    """The task that these inputs are for: of several, the first that the model does and that takes them all."""
    order = [task for task in _fitting(request) if task in among]
    done = [task for task in order if task in card.tasks]
    whole = [task for task in done if _takes(card, task, request)]
    return (whole or done or order or [t for t in among if t in card.tasks] or list(among))[0]


def _fitting(request: GenerationRequest) -> list[Task]:
    kinds = {i.type for i in request.inputs}
    roles = {i.role for i in request.inputs if isinstance(i, ImageInput)}
    is_image = request.num_frames == 1 or request.output.format in IMAGE_FORMATS
    if previous_video(request) is not None or roles & {"first_frame", "last_frame"}:
        return ["image-to-video"]
    if "video" in kinds or ("mask" in kinds and not roles):
        return ["video-to-video"]
    if "init" in roles:
        return ["image-to-image"]
    if "reference" in roles:
        return ["image-edit", "image-to-image"] if is_image else ["image-edit", "reference-to-video"]
    if roles:
        images: list[Task] = ["image-edit", "image-to-image"]
        return images if is_image else ["image-to-video", "reference-to-video", *images]
    return ["text-to-image", "text-to-video"] if is_image else ["text-to-video", "text-to-image"]


def _takes(card: ModelCard, task: Task, request: GenerationRequest) -> bool:
    """Whether a task takes these inputs, all of them, and a strength if there is one."""
    accepts = {a.role: a for a in card.accepts(task)}
    count = Counter(role_of(i, task) for i in request.inputs if not isinstance(i, TextInput))
    takes_strength = request.strength is None or task in card.strength_tasks
    needs = all(count[role] for role, a in accepts.items() if a.required)
    return takes_strength and needs and all(r in accepts and n <= accepts[r].max_count for r, n in count.items())


def follow_video(request: GenerationRequest, card: ModelCard) -> GenerationRequest:
    """What the request leaves out and a given video has: size, frames per second, and its length if it is worked on.

    Rounded down to what the model makes. A video that nobody has looked into yet counts as the smallest there is.
    """
    video = given_video(request)
    if video is None:
        return request
    multiple, stride = card.size_multiple, card.frame_stride
    clip = video.clip or _smallest(card)
    found = {
        "width": max(clip.width // multiple, 1) * multiple,
        "height": max(clip.height // multiple, 1) * multiple,
        "fps": max(round(clip.fps), 1),
    }
    if video.role == "video" and request.seconds is None:
        found["num_frames"] = (clip.num_frames - 1) // stride * stride + 1
    return request.model_copy(update={name: v for name, v in found.items() if getattr(request, name) is None})


def _smallest(card: ModelCard) -> Clip:
    d, multiple = card.defaults, card.size_multiple
    width, height = (d.width, d.height) if card.target_pixels else (multiple, multiple)
    return Clip(width=width, height=height, num_frames=1, fps=1)


def _check_inputs(request: GenerationRequest, card: ModelCard, task: Task) -> None:
    if task not in card.tasks:
        field = "task" if request.task or not request.inputs else "inputs"
        raise FieldError(field, f"model '{card.id}' cannot do '{task}'; it does {', '.join(card.tasks)}")
    accepts = {a.role: a for a in card.accepts(task)}
    count: Counter[Role] = Counter()
    for i, item in enumerate(request.inputs):
        if isinstance(item, TextInput):
            continue
        role = role_of(item, task)
        count[role] += 1
        what = f"image of role '{role}'" if isinstance(item, ImageInput) else role
        if role not in accepts:
            takes = ", ".join(accepts) or "no input"
            raise FieldError(f"inputs.{i}", f"task '{task}' of model '{card.id}' takes no {what}; it takes {takes}")
        if count[role] > accepts[role].max_count:
            limit = accepts[role].max_count
            raise FieldError(f"inputs.{i}", f"{count[role]} inputs of role '{role}' with {task}; the limit is {limit}")
    for role, accepted in accepts.items():
        if accepted.required and not count[role]:
            what = role if role in ("video", "mask") else f"an image of role '{role}'"
            raise FieldError("inputs", f"task '{task}' needs {what}")


def _base_spec(request: GenerationRequest, card: ModelCard, task: Task, seed: int) -> dict[str, Any]:
    d = card.defaults
    guidance = d.guidance_scale if request.guidance_scale is None else request.guidance_scale
    given = {name: v for name in FAMILY_PARAMETERS if (v := getattr(request, name)) is not None}
    known = {p.name for p in card.parameters}
    for name in given:
        if name not in known:
            raise FieldError(name, f"{name} is nothing that model '{card.id}' ({card.family}) takes")
    strength = d.strength if request.strength is None else request.strength
    return {
        "model": card.id,
        "task": task,
        **_texts(request),
        "height": d.height if request.height is None else request.height,
        "width": d.width if request.width is None else request.width,
        "num_frames": _num_frames(request, card, task),
        "num_inference_steps": d.num_inference_steps
        if request.num_inference_steps is None
        else request.num_inference_steps,
        "guidance_scale": guidance,
        "seed": seed,
        "fps": d.fps if request.fps is None else request.fps,
        "strength": strength if task in card.strength_tasks else 1.0,
        "strength_rounds_up": card.strength_rounds_up,
        "audio": card.has_audio and task in VIDEO_TASKS if request.audio is None else request.audio,
        "extra": card.fill(given, guidance),
    }


def _texts(request: GenerationRequest) -> dict[str, str]:
    text = {"prompt": request.prompt, "negative_prompt": request.negative_prompt}
    for i, item in enumerate(request.inputs):
        if isinstance(item, TextInput):
            if text[item.role]:
                raise FieldError(f"inputs.{i}", f"{item.role} is given twice")
            text[item.role] = item.text
    return text


def _num_frames(request: GenerationRequest, card: ModelCard, task: Task) -> int:
    d, frames = card.defaults, request.num_frames
    if request.seconds is not None:
        if frames is not None:
            raise FieldError("seconds", "give seconds or num_frames, not both")
        if task not in VIDEO_TASKS:
            raise FieldError("seconds", f"task '{task}' makes no video")
        fps = d.fps if request.fps is None else request.fps
        return max(0, round((request.seconds * fps - 1) / card.frame_stride)) * card.frame_stride + 1
    if frames is None:
        return d.num_frames if task in VIDEO_TASKS else 1
    return frames


def _check_honoured(request: GenerationRequest, card: ModelCard, spec: Spec) -> None:
    """Refuses what this model, or this task, would leave without effect."""
    task = spec.task
    if request.strength is not None and task not in card.strength_tasks:
        tasks = ", ".join(card.strength_tasks) or "no task of this model"
        raise FieldError("strength", f"strength={request.strength} is for {tasks}; this is {task}")
    if request.guidance_scale is not None and not card.has_guidance:
        raise FieldError(
            "guidance_scale", f"guidance_scale={request.guidance_scale}: model '{card.id}' was distilled without it"
        )
    if spec.negative_prompt and not card.uses_negative(spec):
        if not card.has_negative:
            raise FieldError("negative_prompt", f"model '{card.id}' takes no negative_prompt")
        needed = " or ".join(card.cfg_parameters)
        raise FieldError("negative_prompt", f"negative_prompt has an effect only where {needed} is above 1")
    if request.guidance_scale_2 is not None and not card.uses_negative(spec):
        raise FieldError("guidance_scale_2", "guidance_scale_2 has an effect only where guidance_scale is above 1")
    previous = previous_video(request)
    is_known = previous is not None and (previous.clip is not None or request.seconds is None)
    if is_known and spec.num_frames < 2:  # until the video's fps is known, seconds may be any number of frames
        raise FieldError("num_frames", f"num_frames={spec.num_frames}: its first frame is the last one of the video")
    video = task in VIDEO_TASKS
    suffixes = ("mp4", "webm") if video else ("png", "webp", "jpeg")
    if request.output.format is not None and request.output.format not in suffixes:
        raise FieldError("output.format", f"'{request.output.format}' is not one of {', '.join(suffixes)} for {task}")
    if card.is_guest and request.previews:
        raise FieldError("previews", f"previews={request.previews}: model '{card.id}' runs as a guest and shows none")
