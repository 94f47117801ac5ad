"""Whole generations of the embedded model, each part of them timed; and what is chosen to be measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.families.kit import Model, all_models

from raydiance.models import registry
from raydiance.models.options import LoadOptions
from raydiance.models.spec import Spec
from raydiance.models.tiny import CHECKPOINT
from raydiance.serve.engine.cost_design import Case, design, spec_of
from raydiance.serve.engine.cost_fit import fit
from raydiance.serve.engine.cost_measure import Studio, generate, measure
from raydiance.serve.engine.cost_model import step_work
from raydiance.serve.engine.engine import Engine
from raydiance.serve.engine.fleet import Alone
from raydiance.serve.engine.price import Pricing
from raydiance.serve.engine.ways import Shape

torch.set_num_threads(1)


def write(spec: Spec, frames: Sequence[NDArray[np.uint8]]) -> bytes:
    return np.concatenate(frames).tobytes()


@pytest.fixture(scope="module")
def studio() -> Studio:
    encoder, denoiser, decoder = (
        registry.load(CHECKPOINT, stage, "tiny", LoadOptions()) for stage in ("encode", "denoise", "decode")
    )
    return Studio(encoder, Alone(Engine(denoiser)), decoder, write)


def test_every_part_of_a_generation_is_timed(studio: Studio) -> None:
    spec = spec_of(studio.card, "text-to-video", 0.5, 0.5, guided=True)
    made = generate(studio, Case(spec, 2))
    steps = [sample for sample in made.samples if sample.part == "step"]
    assert [sample.work for sample in steps] == [step_work(Shape(8, 2, 2))] * spec.num_inference_steps
    assert [s.part for s in made.samples if s.part != "step"] == [
        *("text", "tokens", "denoise", "denoise", "decode", "video_file")
    ]
    assert np.concatenate(made.frames).shape == (5, 16, 16, 3)
    timed = sum(sample.seconds for sample in made.samples if sample.part != "tokens")
    assert 0 < timed <= made.seconds
    assert not studio.fleet.rank._held  # type: ignore[attr-defined]


def test_given_pictures_are_timed_too(studio: Studio) -> None:
    made = generate(studio, Case(spec_of(studio.card, "image-to-video", 0.5, 0.5, guided=False)))
    [inputs] = [sample for sample in made.samples if sample.part == "inputs"]
    assert inputs.work == {"pixel_frames": 5 * 256, "pixels": 256, "calls": 1}
    [text] = [sample for sample in made.samples if sample.part == "text"]
    assert text.work["texts"] == 1


def test_what_is_measured_prices_a_request(studio: Studio) -> None:
    cases = [case for case in design(studio.card, quick=True) if case.num_rows * case.spec.num_frames <= 5]
    told: list[tuple[float, str]] = []
    samples = measure(studio, cases, rounds=1, progress=lambda share, what: told.append((share, what)))
    assert (told[0][0], told[-1][0]) == (0.0, 1.0)
    assert len(told) == 2 * len(cases) + 1
    model = fit(samples)
    spec = spec_of(studio.card, "image-to-video", 1, 1, guided=True)
    assert model.num_tokens(spec, studio.card) == 48
    price = Pricing(model).price(spec, studio.card)
    assert 0 < price.step_s < price.denoise_s < price.total_s
    assert min(price.text_s, price.inputs_s, price.decode_s, price.file_s) > 0


def test_no_further_size_is_begun_when_time_is_up(studio: Studio) -> None:
    assert measure(studio, design(studio.card), longest_s=-1) == []


def test_what_fails_leaves_nothing_behind(studio: Studio) -> None:
    spec = spec_of(studio.card, "text-to-image", 1, 1, guided=True)
    with pytest.raises(ValueError, match="needs the negative prompt"):
        generate(replace(studio, encoder=_Half(studio.encoder)), Case(spec))  # type: ignore[arg-type]
    assert not studio.fleet.rank._held  # type: ignore[attr-defined]


class _Half:
    """Forgets the second of two texts."""

    def __init__(self, encoder: object) -> None:
        self.encoder = encoder

    def encode_prompts(self, texts: Sequence[str]) -> object:
        return self.encoder.encode_prompts(texts[:1])  # type: ignore[attr-defined]


def test_a_design_tells_costs_apart(studio: Studio) -> None:
    """Of the embedded model: tokens, rows and guidance each take several values, and all that it takes is in it."""
    cases = design(studio.card)
    card = studio.card
    assert {case.spec.task for case in cases} == set(card.tasks)
    assert {case.num_rows for case in cases} == {1, 2, 4, 8}
    assert {card.uses_negative(case.spec) for case in cases} == {True, False}
    tokens = {card.num_tokens(c.spec.height, c.spec.width, c.spec.num_frames) for c in cases}
    assert max(tokens) >= 64 * min(tokens)
    quick = design(card, quick=True)
    assert len(quick) < len(cases)
    assert all(case in cases for case in quick)


@pytest.mark.parametrize("model", all_models(), ids=lambda model: model.name)
def test_every_family_has_a_design(model: Model) -> None:
    card = registry.card(model.folder, model.name)
    cases = design(card)
    assert cases
    assert {case.spec.task for case in cases} >= {task for task in card.tasks if card.accepts(task)}
    for case in cases:
        card.check(case.spec)
