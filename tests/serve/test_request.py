"""A request becomes specs: defaults, inference of the task, every limit named."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from raydiance.models.card import Defaults, ModelCard
from raydiance.models.inputs import Accepts
from raydiance.models.spec import FieldError, Spec
from raydiance.serve.request import FAMILY_PARAMETERS, GenerationRequest
from raydiance.serve.samples import follow_video, infer_task, resolve

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
ANY = {"type": "image", "source": {"b64": "x"}}
REFERENCE = {"type": "image", "role": "reference", "source": {"b64": "x"}}
MASK = {"type": "mask", "source": {"b64": "x"}}
VIDEO = {"type": "video", "source": {"b64": "x"}}
PREVIOUS = {"type": "video", "role": "previous", "source": {"b64": "x"}}
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
        ({"inputs": [ANY]}, "image-to-video"),
        ({"inputs": [ANY], "num_frames": 1}, "image-to-image"),
        ({"inputs": [ANY], "output": {"format": "webp"}}, "image-to-image"),
        ({"output": {"format": "png"}}, "text-to-image"),
        ({"inputs": [PREVIOUS]}, "image-to-video"),
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
        ({"inputs": [MASK]}, "inputs", "cannot do 'video-to-video'"),
        ({"inputs": [VIDEO]}, "inputs", "cannot do 'video-to-video'"),
        ({"inputs": [MASK], "task": "text-to-video"}, "inputs.0", "takes no mask"),
        ({"inputs": [FIRST, MASK]}, "inputs.1", "takes no mask"),
        ({"inputs": [PREVIOUS, FIRST]}, "inputs.1", "2 inputs of role 'first_frame'"),
        ({"inputs": [PREVIOUS], "num_frames": 1}, "num_frames", "the last one of the video"),
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


EDITOR = dataclasses.replace(
    CARD,
    tasks=("image-edit", "image-to-image", "reference-to-video", "video-to-video", "image-to-video"),
    inputs={
        "image-edit": (Accepts("reference", max_count=3),),
        "image-to-image": (Accepts("init"), Accepts("mask", required=False)),
        "reference-to-video": (Accepts("reference", max_count=2),),
        "image-to-video": (Accepts("first_frame"), Accepts("last_frame", required=False)),
        "video-to-video": (Accepts("video"), Accepts("mask", required=False), Accepts("reference", required=False)),
    },
    strength_tasks=("image-to-image", "video-to-video"),
)
LAST = {**FIRST, "role": "last_frame"}


@pytest.mark.parametrize(
    ("values", "task"),
    [
        ({"inputs": [ANY]}, "image-to-video"),
        ({"inputs": [ANY, ANY]}, "reference-to-video"),  # what takes them all
        ({"inputs": [ANY, ANY, ANY]}, "image-edit"),
        ({"inputs": [ANY], "num_frames": 1}, "image-edit"),
        ({"inputs": [ANY], "num_frames": 1, "strength": 0.5}, "image-to-image"),  # what takes a strength
        ({"inputs": [ANY, MASK], "num_frames": 1}, "image-to-image"),
        ({"inputs": [FIRST, LAST]}, "image-to-video"),
        ({"inputs": [LAST]}, "image-to-video"),
        ({"inputs": [REFERENCE]}, "image-edit"),
        ({"inputs": [VIDEO]}, "video-to-video"),
        ({"inputs": [VIDEO, MASK, REFERENCE]}, "video-to-video"),
        ({"inputs": [MASK]}, "video-to-video"),
    ],
)
def test_of_several_tasks_the_one_that_takes_the_inputs(values: dict[str, Any], task: str) -> None:
    assert infer_task(GenerationRequest(prompt="p", **values), EDITOR) == task


def test_only_tasks_of_the_route_are_considered() -> None:
    request = GenerationRequest(prompt="p", inputs=[ANY])
    assert infer_task(request, EDITOR, ("image-edit", "image-to-image")) == "image-edit"
    assert infer_task(request, CARD, ("video-to-video",)) == "video-to-video"  # refused by name later


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"inputs": [MASK]}, "needs video"),
        ({"inputs": [LAST]}, "role 'first_frame'"),
        ({"inputs": [ANY, ANY, ANY, ANY]}, "the limit is 1"),
    ],
)
def test_what_is_missing_or_too_much_is_named(values: dict[str, Any], says: str) -> None:
    with pytest.raises(FieldError, match=says):
        resolve(GenerationRequest(prompt="p", **values), EDITOR, seed=5)


CLIP = {"width": 100, "height": 70, "num_frames": 15, "fps": 23.976}


@pytest.mark.parametrize(
    ("role", "values", "expected"),
    [
        ("video", {}, (96, 64, 13, 24)),
        ("previous", {}, (96, 64, 9, 24)),  # as long as the model's default
        ("video", {"width": 32, "fps": 8, "num_frames": 5}, (32, 64, 5, 8)),
        ("video", {"seconds": 0.5, "fps": 16}, (96, 64, 9, 16)),
        ("previous", {"seconds": 1}, (96, 64, 25, 24)),
    ],
)
def test_what_is_left_out_follows_the_given_video(
    role: str, values: dict[str, Any], expected: tuple[int, int, int, int]
) -> None:
    request = GenerationRequest(prompt="p", inputs=[{**VIDEO, "role": role, "clip": CLIP}], **values)
    [spec] = resolve(follow_video(request, EDITOR), EDITOR, seed=5)
    assert (spec.width, spec.height, spec.num_frames, spec.fps) == expected


def test_a_video_that_nobody_has_looked_into_is_refused_for_nothing_but_what_was_asked() -> None:
    request = GenerationRequest(prompt="p", inputs=[VIDEO], width=4096, num_frames=1)
    assert resolve(follow_video(request, EDITOR), EDITOR, seed=5)
    with pytest.raises(FieldError, match="8192"):
        resolve(follow_video(request.model_copy(update={"width": 8192}), EDITOR), EDITOR, seed=5)


def test_videos_have_sound_where_the_model_makes_any() -> None:
    card = dataclasses.replace(EDITOR, has_audio=True)
    for item in (FIRST, PREVIOUS):
        request = GenerationRequest(prompt="p", inputs=[item])
        assert resolve(request, card, seed=5)[0].audio
        assert not resolve(request.model_copy(update={"audio": False}), card, seed=5)[0].audio
        assert not resolve(request, EDITOR, seed=5)[0].audio
        with pytest.raises(FieldError, match="makes no sound"):
            resolve(request.model_copy(update={"audio": True}), EDITOR, seed=5)


def test_family_parameters_are_fields_of_every_request() -> None:
    assert set(FAMILY_PARAMETERS) <= set(GenerationRequest.model_fields)
    assert "true_cfg_scale" in FAMILY_PARAMETERS
