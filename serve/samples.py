"""From a request to the samples that it asks for, every default filled in and every limit checked. Pure, no torch."""

from __future__ import annotations

from collections import Counter
from typing import Any

from raydiance.models.card import ModelCard
from raydiance.models.inputs import Role
from raydiance.models.spec import VIDEO_TASKS, FieldError, Spec, Task
from raydiance.serve.request import FAMILY_PARAMETERS, GenerationRequest, ImageInput, TextInput, role_of


def resolve(request: GenerationRequest, card: ModelCard, seed: int) -> list[Spec]:
    """The request's samples, with the model's defaults filled in and every limit checked. Pure.

    Args:
        seed: used when the request names none.

    Raises:
        FieldError: names the field, the value and the limit.
    """
    task = request.task or _infer_task(request, card)
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


def _infer_task(request: GenerationRequest, card: ModelCard) -> Task:
    """The task that takes these inputs; of several, the first that the model does."""
    kinds = {i.type for i in request.inputs}
    roles = {i.role for i in request.inputs if isinstance(i, ImageInput)}
    single = request.num_frames == 1
    fitting: list[Task]
    if kinds & {"video", "mask"}:
        fitting = ["video-to-video"]
    elif roles & {"first_frame", "last_frame"}:
        fitting = ["image-to-video"]
    elif "init" in roles:
        fitting = ["image-to-image"]
    elif "reference" in roles:
        fitting = ["image-edit", "reference-to-video"]
    elif roles:
        fitting = ["image-edit", "image-to-image"] if single else ["image-to-video", "image-edit", "image-to-image"]
    else:
        fitting = ["text-to-image", "text-to-video"] if single else ["text-to-video", "text-to-image"]
    return next((task for task in fitting if task in card.tasks), fitting[0])


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
            raise FieldError("inputs", f"{count[role]} inputs of role '{role}'; the limit is {accepts[role].max_count}")
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
    video = task in VIDEO_TASKS
    suffixes = ("mp4", "webm") if video else ("png", "webp", "jpeg")
    if request.output.format is not None and request.output.format not in suffixes:
        raise FieldError("output.format", f"'{request.output.format}' is not one of {', '.join(suffixes)} for {task}")
    if card.is_guest and request.previews:
        raise FieldError("previews", f"previews={request.previews}: model '{card.id}' runs as a guest and shows none")
