"""Measuring what the parts of a generation cost here: whole generations of several sizes, each part of them timed.

The sizes are gone through in rounds: what disturbs the machine for a while disturbs all of them alike, and medians
leave it out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from raydiance.models.card import ModelCard
from raydiance.models.family import Family, Tensors
from raydiance.models.inputs import IMAGE_ROLES, Inputs
from raydiance.models.spec import Spec
from raydiance.parallel.mesh import Layout, Mesh, Subgroup
from raydiance.parallel.schedule import SCHEDULES
from raydiance.serve.engine import cost_model
from raydiance.serve.engine.cost_design import Case
from raydiance.serve.engine.cost_model import Part, Sample, Work
from raydiance.serve.engine.fleet import Fleet
from raydiance.serve.engine.orders import Outcome, Report, Start, Turn
from raydiance.serve.engine.parts import shape_of

log = logging.getLogger("ray.serve")
Frames = NDArray[np.uint8]
Write = Callable[[Spec, Sequence[Frames]], bytes]
"""Frames of a spec to the bytes of a file."""


@dataclass(frozen=True, slots=True)
class Studio:
    """What generates, in this process.

    Args:
        encoder: a family built for the stage `encode`.
        fleet: of one rank.
        decoder: a family built for the stage `decode`.
    """

    encoder: Family
    fleet: Fleet
    decoder: Family
    write: Write

    @property
    def card(self) -> ModelCard:
        return self.fleet.card


@dataclass(frozen=True, slots=True)
class Made:
    """One case, generated.

    Args:
        samples: what it took, part by part.
        seconds: from its prompts to its files, one row's text, inputs, frames and file beside all rows' steps.
        frames: of the first row.
    """

    samples: list[Sample]
    seconds: float
    frames: list[Frames]


def measure(
    studio: Studio,
    cases: Sequence[Case],
    *,
    rounds: int = 2,
    longest_s: float = float("inf"),
    progress: Callable[[float, str], None] = lambda _share, _what: None,
) -> list[Sample]:
    """Medians over rounds of every part of every case.

    Args:
        rounds: after a first one, which counts only for what was not measured again.
        longest_s: no further case is begun after so long; those that come first are the smallest.
        progress: called with a share in [0, 1] and with what is done now.

    What does not fit into a GPU's memory is left out. Raises what the families raise; RanksLost.
    """
    began, first, found = time.monotonic(), _Found(), _Found()
    total = len(cases) * (1 + rounds)
    for i in range(total):
        case = cases[i % len(cases)]
        if time.monotonic() - began > longest_s:
            break
        progress(i / total, _name(case))
        try:
            made = generate(studio, case)
        except torch.OutOfMemoryError as error:
            log.warning("%s does not fit, and is left out: %s", _name(case), error)
            continue
        (first if i < len(cases) else found).add(made.samples)
    progress(1.0, "")
    return found.medians(instead=first)


class _Found:
    def __init__(self) -> None:
        self._seconds: dict[tuple[Part, tuple[tuple[str, float], ...]], list[float]] = {}

    def add(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            self._seconds.setdefault((sample.part, tuple(sample.work.items())), []).append(sample.seconds)

    def medians(self, instead: _Found) -> list[Sample]:
        """Args:
        instead: what counts where there is nothing here.
        """
        both = instead._seconds | self._seconds
        return [Sample(part, dict(work), median(seconds)) for (part, work), seconds in both.items()]


def _name(case: Case) -> str:
    spec = case.spec
    length = f", {spec.num_frames} frames" if spec.is_video else ""
    return f"{case.num_rows} x {spec.width}x{spec.height}{length}"


def generate(studio: Studio, case: Case) -> Made:
    """A case from its prompts to a file, by the calls that the stages make, and what each part took."""
    spec, card, watch = case.spec, studio.card, _Watch()
    texts = [spec.prompt, spec.negative_prompt] if card.uses_negative(spec) else [spec.prompt]
    embeddings = watch.time("text", cost_model.text_work(len(texts)), studio.encoder.encode_prompts, texts)
    inputs: Tensors | None = None
    if accepts := card.accepts(spec.task):
        given = _grey(spec, [a.role for a in accepts if a.required])
        work = cost_model.inputs_work(spec)
        inputs = watch.time("inputs", work, studio.decoder.encode_inputs, spec, given)
    outcome = _denoise(studio, case, embeddings, inputs, watch)
    if outcome is None or outcome.result is None:
        raise RuntimeError(f"after all {spec.num_inference_steps} steps there is no result")
    frames = watch.time("decode", cost_model.decode_work(spec, card), _decode, studio.decoder, outcome.result, spec)
    watch.time(cost_model.file_part(spec), cost_model.file_work(spec), studio.write, spec, frames)
    return Made(watch.samples, watch.seconds, frames)


class _Watch:
    """Times calls. Attributes: samples, and the seconds of all of them."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.seconds = 0.0

    def time(self, part: Part, work: Work, function: Callable[..., Any], *args: Any) -> Any:
        began = time.perf_counter()
        result = function(*args)
        seconds = time.perf_counter() - began
        self.samples.append(Sample(part, work, seconds))
        self.seconds += seconds
        return result


def _denoise(
    studio: Studio, case: Case, embeddings: list[Tensors], inputs: Tensors | None, watch: _Watch
) -> Outcome | None:
    """All rows to their end; the last outcome of the first."""
    spec, fleet = case.spec, studio.fleet
    starts = [Start(f"row-{i}", replace(spec, seed=i), embeddings, inputs) for i in range(case.num_rows)]
    ids = tuple(start.id for start in starts)
    turn = Turn((ids,), Mesh(Subgroup(0, 1), Layout()), SCHEDULES["synchronous"])
    times, steps_s, outcome = [time.perf_counter()], [], None
    try:
        standings = [fleet.begin(start)[0] for start in starts]
        times.append(time.perf_counter())
        for _ in range(spec.num_inference_steps - spec.first_step):
            [report] = fleet.step([turn])
            if not isinstance(report, Report):
                raise report
            times.append(time.perf_counter())
            steps_s.append(report.seconds)
            outcome = report.outcomes[ids[0]]
    finally:
        fleet.drop(ids)
    begin_s, *around_s = [after - before for before, after in pairwise(times)]
    between_s = [whole - step for whole, step in zip(around_s, steps_s, strict=True)]
    watch.seconds += times[-1] - times[0]
    watch.samples += [
        Sample("tokens", cost_model.token_work(spec, studio.card), standings[0].num_tokens),
        Sample("denoise", cost_model.denoise_work(case.num_rows, 0), begin_s),
        Sample("denoise", {"steps": 1, "row_steps": case.num_rows}, median(between_s)),
        *(Sample("step", cost_model.step_work(shape_of(standings)), seconds) for seconds in steps_s),
    ]
    return outcome


def _decode(decoder: Family, latents: torch.Tensor, spec: Spec) -> list[Frames]:
    """Sound is decoded too, where the spec asks for it, and left."""
    frames = list(decoder.decode(latents, spec))
    if spec.audio:
        decoder.decode_audio(latents, spec)
    return frames


def _grey(spec: Spec, roles: Sequence[str]) -> Inputs:
    """What a task cannot do without."""
    grey = Image.new("RGB", (spec.width, spec.height), "grey")
    video = np.stack([np.asarray(grey)] * spec.num_frames) if "video" in roles else None
    mask = np.full((1, spec.height, spec.width), 255, np.uint8) if "mask" in roles else None
    return Inputs({role: [grey] for role in IMAGE_ROLES if role in roles}, video, mask)
