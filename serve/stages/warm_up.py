"""The first generations of a model: they warm its stages up, and what they take is what requests are priced by."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ray.exceptions import RayTaskError

from raydiance.models.card import ModelCard
from raydiance.models.spec import VIDEO_TASKS, FieldError, Spec
from raydiance.serve.calls import ask, call
from raydiance.serve.engine import cost_model
from raydiance.serve.engine.cost_model import Sample
from raydiance.serve.engine.ways import Shape
from raydiance.serve.errors import GenerationFailed
from raydiance.serve.request import Output
from raydiance.serve.samples import default_spec
from raydiance.serve.stages.denoising import denoising
from raydiance.serve.stages.messages import Decoded, Denoised, Spent, Work
from raydiance.serve.stages.walk import Stages

log = logging.getLogger("ray.serve")
NUM_STEPS = 4


def specs(card: ModelCard) -> Iterator[Spec]:
    """The default size, half of it, and a picture of a model that makes both: as far as the card takes them."""
    whole = default_spec(card, num_inference_steps=min(max(NUM_STEPS, card.min_steps), card.max_steps))
    multiple = card.size_multiple
    height, width = (max(multiple, size // 2 // multiple * multiple) for size in (whole.height, whole.width))
    half = replace(whole, height=height, width=width)
    pictures = [task for task in card.tasks if task not in VIDEO_TASKS and not card.accepts(task)]
    picture = replace(whole, task=pictures[0], num_frames=1, audio=False) if pictures and whole.is_video else whole
    for i, spec in enumerate(made := (whole, half, picture)):
        try:
            if spec not in made[:i]:
                yield card.check(spec)
        except FieldError:
            continue


async def measured(stages: Stages, card: ModelCard, prefix: str) -> list[Sample]:
    """One generation of each of `specs`, and the first of them once more, which is not counted.

    Args:
        prefix: of the files that are written; they are the caller's to delete.

    Raises RayError where a stage is away, and what the default size raises; another that fails is left out, with a
    warning.
    """
    found: list[Sample] = []
    for i, spec in enumerate(specs(card)):
        if i == 0:
            await _generate(stages, card, spec, f"{prefix}/first")
        try:
            found += await _generate(stages, card, spec, f"{prefix}/{i}")
        except (RayTaskError, RuntimeError, ValueError) as e:
            if i == 0:
                raise
            size = f"{spec.width}x{spec.height}, {spec.num_frames} frames"
            log.warning("model '%s' is not measured at %s, where it fails: %s", card.id, size, e)
    return found


async def _generate(stages: Stages, card: ModelCard, spec: Spec, prefix: str) -> list[Sample]:
    embeddings, text_s = await stages.encode(spec, card)
    inputs = call(stages.vae_decoder, "encode_blank", spec) if card.accepts(spec.task) else None
    latents, spent = await _denoise(stages, Work(prefix.replace("/", "-"), spec), embeddings, inputs)
    decoded: Decoded = await ask(stages.vae_decoder, "decode", latents, spec, Output(), prefix, 0, None)
    branches = 2 if card.uses_negative(spec) else 1
    shape = Shape(card.num_tokens(spec.height, spec.width, spec.num_frames), 1, branches)
    num_steps = spec.num_inference_steps - spec.first_step
    step_s = spent.busy_s / num_steps
    decode_s = decoded.timings["decode_s"] + decoded.timings.get("decode_audio_s", 0.0)
    file_s = decoded.timings["encode_file_s"] + decoded.timings["store_s"]
    around_s = max(spent.seconds - spent.busy_s, 0.0)
    return [
        Sample("text", cost_model.text_work(branches), text_s),
        Sample("step", cost_model.step_work(shape), step_s),
        Sample("denoise", cost_model.denoise_work(1, num_steps), around_s),
        Sample("decode", cost_model.decode_work(spec, card), decode_s),
        Sample(cost_model.file_part(spec), cost_model.file_work(spec), file_s),
    ]


async def _denoise(stages: Stages, work: Work, embeddings: Any, inputs: Any) -> tuple[Any, Spent]:
    async with denoising(stages.denoiser, work, embeddings, inputs) as lease:
        async for event in lease.events:
            if isinstance(event, Denoised):
                return event.latents, event.spent
    raise GenerationFailed(f"the denoiser ended {work.id} without a result")
