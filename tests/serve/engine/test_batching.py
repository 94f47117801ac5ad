"""Trajectories that share forwards get what they get alone."""

from __future__ import annotations

import itertools

import pytest
import torch
from tests.studio import RANDOM, TRAINED, make_spec, studio_of

from raydiance.serve.engine.engine import Engine

LATENTS, PIXELS = 1e-5, 1e-4
TRAINED_LATENTS = 1e-4  # rounding depends on the batch size; trained weights under high guidance amplify it
FOUR = [
    make_spec(num_inference_steps=8),
    make_spec(prompt="the blue square", guidance_scale=1.0, num_inference_steps=5, seed=1),
    make_spec("image-to-video", guidance_scale=6.0, num_inference_steps=12, seed=2),
    make_spec(prompt="a black circle over a square", negative_prompt="", guidance_scale=2.0, seed=3),
]


class Counter:
    """Calls of the transformer itself, and their rows."""

    def __init__(self, denoiser):
        self.rows: list[int] = []
        self._hook = denoiser.pipeline.transformer.register_forward_hook(
            lambda module, args, kwargs, output: self.rows.append(len(kwargs["hidden_states"])), with_kwargs=True
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._hook.remove()


@pytest.mark.parametrize("name", [*RANDOM, TRAINED])
def test_four_that_join_at_different_times_get_what_they_get_alone(name):
    studio = studio_of(name)
    alone = [studio.latents(spec) for spec in FOUR]
    engine, waiting = studio.engine(), dict(enumerate(studio.start(spec) for spec in FOUR))
    active, finished, ticks = {}, {}, 0
    with Counter(studio.denoiser) as counter:
        while waiting or active:
            if waiting and ticks % 2 == 0:
                index = min(waiting)
                active[index] = waiting.pop(index)
            active = dict(zip(active, engine.step(list(active.values())), strict=True))
            finished |= {i: t for i, t in active.items() if t.is_done}
            active = {i: t for i, t in active.items() if not t.is_done}
            ticks += 1
    assert engine.num_forwards == ticks
    assert engine.num_rows == sum(spec.num_inference_steps for spec in FOUR)
    assert sum(counter.rows) == sum((1 + (spec.guidance_scale > 1)) * spec.num_inference_steps for spec in FOUR)
    assert {4, 3} <= set(counter.rows)  # four with their prompts, three of them guided
    for index, expected in enumerate(alone):
        latents = engine.finish(finished[index])
        assert (latents - expected).abs().max() <= (TRAINED_LATENTS if name == "trained" else LATENTS), FOUR[index]
        pixels, alone_pixels = (studio.pixels(x, exact=True) for x in (latents, expected))
        assert (pixels - alone_pixels).abs().max() <= PIXELS, FOUR[index]


def test_sizes_that_cannot_share_a_forward_have_their_own():
    studio, engine = studio_of("unipc"), studio_of("unipc").engine()
    specs = [make_spec(), make_spec("text-to-image"), make_spec(seed=1), make_spec("text-to-image", seed=1)]
    alone = [studio.run(studio.start(spec), to=1).latents for spec in specs]
    stepped = engine.step([studio.start(spec) for spec in specs])
    assert [t.spec for t in stepped] == specs
    assert (engine.num_forwards, engine.num_rows) == (2, 4)
    for trajectory, expected in zip(stepped, alone, strict=True):
        assert (trajectory.latents - expected).abs().max() <= LATENTS


def test_guidance_costs_a_row_only_where_it_is_used():
    studio = studio_of("unipc")
    with Counter(studio.denoiser) as counter:
        studio.engine().step([studio.start(make_spec(guidance_scale=g)) for g in (1.0, 0.0, 1.01)])
    assert counter.rows == [3, 1]


def test_a_plan_item_counts_the_tokens_of_one_forward():
    studio, engine = studio_of("unipc"), studio_of("unipc").engine()
    tokens = studio.denoiser.card.num_tokens(32, 48, 5)
    guided, plain = (engine.plan_item(studio.start(make_spec(guidance_scale=g))) for g in (3.0, 1.0))
    assert guided.num_tokens == plain.num_tokens == tokens == 12
    assert guided.key == plain.key
    assert engine.plan_item(studio.start(make_spec(height=48))).key != guided.key


def test_a_trajectory_that_is_done_is_not_stepped():
    studio = studio_of("unipc")
    done = studio.run(studio.start(make_spec(num_inference_steps=1)))
    with pytest.raises(ValueError, match="done after 1 steps"):
        studio.engine().step([studio.start(make_spec()), done])
    with pytest.raises(ValueError, match="4 of 4 steps remain"):
        studio.engine().finish(studio.start(make_spec()))
    assert studio.engine().step([]) == []


@pytest.mark.parametrize("name", RANDOM)
def test_nothing_that_is_given_is_changed(name):
    studio = studio_of(name)
    engine = Engine(studio.denoiser)
    trajectory = studio.run(studio.start(make_spec("image-to-video", num_inference_steps=6)), to=3)

    def tensors():
        solver, _ = trajectory.solver.to_parts()
        own = [trajectory.latents, trajectory.denoised, trajectory.generator_state]
        return list(itertools.chain(own, solver.values(), trajectory.fixed.conditioning.values()))

    before = [tensor.clone() for tensor in tensors()]
    engine.step([trajectory, trajectory])
    engine.preview(trajectory)
    engine.branch(trajectory, seed=1, spread=0.5)
    engine.rewind(trajectory, 1)
    assert trajectory.step_index == 3
    assert all(torch.equal(a, b) for a, b in zip(before, tensors(), strict=True))
