"""Which generations are measured to know what a model costs: sizes around its default. Pure, no torch.

Tokens, rows and guidance grow apart from each other, so that a fit can tell their costs apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raydiance.models.card import ModelCard
from raydiance.models.spec import VIDEO_TASKS, FieldError, Spec, Task

PROMPT = "a large red circle moves right on a white background"
NUM_STEPS = 6
"""Of a generation: the first and the last are not those of the middle for solvers that look back."""

_Size = tuple[float, float, int, bool]
"""Side and frames as multiples of the defaults, rows, whether guided."""
_IMAGES = ((0.5, 1, False), (1, 1, True), (1, 4, True), (2, 1, False), (2, 8, True), (4, 1, True), (4, 2, False))
_VIDEOS: tuple[_Size, ...] = (
    (0.5, 1, 1, True),
    (1, 0.5, 1, False),
    (1, 1, 1, True),
    (1, 1, 2, True),
    (1, 1, 8, True),
    (2, 0.5, 1, True),
    (2, 1, 1, False),
    (2, 1, 4, True),
    (2, 2, 1, True),
    (4, 0.5, 1, True),
    (4, 1, 1, True),
    (4, 3, 1, True),
)
_WITH_INPUTS: tuple[_Size, ...] = ((1, 1, 1, True), (2, 1, 1, True))
_LARGEST_WHEN_QUICK = 2
_GUIDED = 2.0


@dataclass(frozen=True, slots=True)
class Case:
    """Some samples of one spec that are generated together."""

    spec: Spec
    num_rows: int = 1


def design(card: ModelCard, *, quick: bool = False) -> list[Case]:
    """Sizes around the card's default, as far as the card takes them: of an image task, a video task, and of all that
    take pictures or videos. The smallest come first.

    Args:
        quick: without the largest.
    """
    largest = _LARGEST_WHEN_QUICK if quick else max(side for side, *_ in _VIDEOS)
    images = [(side, 1, rows, guided) for side, rows, guided in _IMAGES]
    plain = [task for task in card.tasks if not card.accepts(task)]
    sizes = {task: images for task in plain if task not in VIDEO_TASKS}
    tasks: dict[Task, Sequence[_Size]] = dict(list(sizes.items())[:1])
    tasks |= dict.fromkeys([t for t in plain if t in VIDEO_TASKS][:1], _VIDEOS)
    tasks |= {task: _WITH_INPUTS if plain else _VIDEOS for task in card.tasks if card.accepts(task)}
    cases: list[Case] = []
    for task, of_task in tasks.items():
        for side, length, rows, guided in of_task:
            case = Case(spec_of(card, task, side, length, guided=guided), rows)
            if side <= largest and case not in cases and _takes(card, case.spec):
                cases.append(case)
    return sorted(cases, key=lambda case: _tokens(card, case))


def _takes(card: ModelCard, spec: Spec) -> bool:
    try:
        card.check(spec)
    except FieldError:
        return False
    return True


def spec_of(card: ModelCard, task: Task, side: float, length: float, *, guided: bool) -> Spec:
    """Args:
    side, length: multiples of the card's default size and frames, rounded down to what it takes.
    guided: whether classifier-free guidance runs, where the model has it.
    """
    d, multiple, stride = card.defaults, card.size_multiple, card.frame_stride
    height, width = (max(multiple, int(pixels * side) // multiple * multiple) for pixels in (d.height, d.width))
    frames = max(1, int((d.num_frames - 1) * length) // stride) * stride + 1 if task in VIDEO_TASKS else 1
    scale = _scale(d.guidance_scale, guided) if "guidance_scale" in card.cfg_parameters else d.guidance_scale
    scales = {p.name: _scale(p.default, guided) for p in card.parameters if p.name in card.cfg_parameters}
    return Spec(
        model=card.id,
        task=task,
        prompt=PROMPT,
        height=height,
        width=width,
        num_frames=frames,
        num_inference_steps=min(max(NUM_STEPS, card.min_steps), card.max_steps),
        guidance_scale=scale,
        seed=0,
        fps=d.fps,
        strength_rounds_up=card.strength_rounds_up,
        audio=card.has_audio and task in VIDEO_TASKS,
        extra=card.fill(scales, scale),
    )


def _scale(default: float | None, guided: bool) -> float:
    """Of classifier-free guidance, so that it runs or does not."""
    return max(default or 0.0, _GUIDED) if guided else 1.0


def _tokens(card: ModelCard, case: Case) -> int:
    spec = case.spec
    branches = 2 if card.uses_negative(spec) else 1
    return card.num_tokens(spec.height, spec.width, spec.num_frames) * case.num_rows * branches
