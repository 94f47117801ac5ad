"""A request becomes specs: defaults, inference of the task, every limit named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from raydiance.models.card import Defaults, ModelCard
from raydiance.models.spec import FieldError, Spec
from raydiance.serve.request import GenerationRequest
from raydiance.serve.samples import resolve

CARD = ModelCard(
    id="m",
    family="wan",
    tasks=("text-to-video", "text-to-image", "image-to-video", "image-to-image"),
    defaults=Defaults(height=32, width=48, num_frames=9, fps=8, num_inference_steps=20, guidance_scale=4.0),
    size_multiple=16,
    frame_stride=4,
    spatial_factor=4,
    temporal_factor=4,
    patch=(1, 2, 2),
    max_tokens=10_000,
)
FIRST = {"type": "image", "role": "first_frame", "source": {"b64": "x"}}
INIT = {"type": "image", "role": "init", "source": {"b64": "x"}}


def specs(**values: Any) -> list[Spec]:
    return resolve(GenerationRequest(**{"prompt": "p", **values}), CARD, seed=5)


def test_silence_takes_the_models_defaults() -> None:
    [spec] = specs()
    assert (spec.task, spec.height, spec.width, spec.num_frames) == ("text-to-video", 32, 48, 9)
    assert (spec.seed, spec.num_inference_steps, spec.guidance_scale, spec.fps) == (5, 20, 4.0, 8)


def test_samples_differ_in_their_seed_alone() -> None:
    made = specs(n=3, seed=10)
    assert [s.seed for s in made] == [10, 11, 12]
    assert len({tuple(sorted((k, str(v)) for k, v in s.to_dict().items() if k != "seed")) for s in made}) == 1


@pytest.mark.parametrize(
    ("values", "task"),
    [
        ({}, "text-to-video"),
        ({"num_frames": 1}, "text-to-image"),
        ({"inputs": [FIRST]}, "image-to-video"),
        ({"inputs": [INIT]}, "image-to-image"),
    ],
)
def test_the_task_follows_from_the_inputs(values: dict[str, Any], task: str) -> None:
    assert specs(**values)[0].task == task


@pytest.mark.parametrize(("seconds", "fps", "frames"), [(1, 8, 9), (2, 8, 17), (0.1, 8, 1), (1.5, 10, 17)])
def test_seconds_become_the_nearest_number_of_frames_that_the_model_makes(
    seconds: float, fps: int, frames: int
) -> None:
    assert specs(seconds=seconds, fps=fps)[0].num_frames == frames


def test_text_inputs_are_prompts() -> None:
    texts = [{"type": "text", "text": "a"}, {"type": "text", "role": "negative_prompt", "text": "b"}]
    [spec] = specs(prompt="", inputs=texts)
    assert (spec.prompt, spec.negative_prompt) == ("a", "b")


@pytest.mark.parametrize(
    ("values", "field", "says"),
    [
        ({"prompt": " "}, "prompt", "empty"),
        ({"prompt": "x" * 100_000}, "prompt", "8000"),
        ({"height": 40}, "height", "multiple of 16"),
        ({"width": 8192}, "width", "4096"),
        ({"height": 0}, "height", "16"),
        ({"num_frames": 10}, "num_frames", "4k+1"),
        ({"num_frames": 0}, "num_frames", "between 1"),
        ({"num_inference_steps": 0}, "num_inference_steps", "between 1"),
        ({"num_inference_steps": 10_000}, "num_inference_steps", "200"),
        ({"guidance_scale": -0.1}, "guidance_scale", "between 0"),
        ({"seed": -1}, "seed", "between 0"),
        ({"seed": 2**63 - 1, "n": 2}, "seed", "between 0"),
        ({"fps": 0}, "fps", "between 1"),
        ({"height": 4096, "width": 4096}, "size", "10000"),
        ({"strength": 0.5}, "strength", "image-to-image"),
        ({"inputs": [INIT], "strength": 0.01}, "strength", "no step"),
        ({"inputs": [INIT, INIT]}, "inputs.1", "the limit is 1"),
        ({"inputs": [FIRST], "task": "text-to-video"}, "inputs.0", "takes no image"),
        ({"task": "image-to-video"}, "inputs", "needs an image"),
        ({"inputs": [{"type": "mask", "source": {"b64": "x"}}]}, "inputs", "cannot do 'video-to-video'"),
        ({"inputs": [{"type": "video", "source": {"b64": "x"}}]}, "inputs", "cannot do 'video-to-video'"),
        ({"seconds": 1, "num_frames": 9}, "seconds", "not both"),
        ({"task": "text-to-image", "seconds": 1}, "seconds", "no video"),
        ({"task": "text-to-image", "num_frames": 9}, "num_frames", "must be 1"),
        ({"negative_prompt": "b", "guidance_scale": 1.0}, "negative_prompt", "guidance_scale is above 1"),
        ({"true_cfg_scale": 4.0}, "true_cfg_scale", "nothing that model"),
        ({"audio": True}, "audio", "no sound"),
        ({"output": {"format": "png"}, "task": "text-to-video"}, "output.format", "mp4"),
        ({"task": "text-to-image", "output": {"format": "mp4"}}, "output.format", "png"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(values: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(FieldError) as caught:
        specs(**values)
    assert caught.value.field == field
    assert says in caught.value.message


@pytest.mark.parametrize("bad", [{"guidance_scale": float("nan")}, {"n": 0}, {"n": 11}, {"previews": 4}, {"stps": 1}])
def test_what_makes_no_sense_for_any_model_is_no_request(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        GenerationRequest(prompt="p", **bad)


@given(
    height=st.integers(-10, 5000),
    width=st.integers(-10, 5000),
    num_frames=st.integers(-10, 2000),
    num_inference_steps=st.integers(-10, 300),
    guidance_scale=st.floats(-1, 200, allow_nan=False),
)
def test_a_spec_that_is_accepted_keeps_every_limit(**values: Any) -> None:
    try:
        [spec] = specs(**values)
    except FieldError:
        return
    assert spec.height % 16 == spec.width % 16 == 0
    assert (spec.num_frames - 1) % 4 == 0
    assert CARD.num_tokens(spec.height, spec.width, spec.num_frames) <= CARD.max_tokens
    assert Spec.from_dict(spec.to_dict()) == spec


def test_cards_cross_process_boundaries_as_dicts() -> None:
    assert ModelCard.from_dict(CARD.to_dict()) == CARD
