"""`/v1/models`: what a model can do, and what it takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tests.serve.api.conftest import CARD

from raydiance.models.card import Parameter
from raydiance.models.inputs import Accepts


def test_a_model_says_what_it_takes(server: Any) -> None:
    [model] = server.http().get("/v1/models").raise_for_status().json()["data"]
    assert model == server.http().get("/v1/models/tiny").json()
    assert model["inputs"] == {
        "text-to-image": [],
        "text-to-video": [],
        "image-to-video": [{"role": "first_frame", "required": True, "max_count": 1}],
        "image-to-image": [{"role": "init", "required": True, "max_count": 1}],
    }
    assert (model["guest"], model["has_audio"], model["parameters"]) == (False, False, {})
    assert model["features"] == dict.fromkeys(("step_batching", "preview", "checkpoint", "cancel"), True)
    assert model["strength_tasks"] == ["image-to-image"]
    assert (model["limits"]["size_multiple"], model["limits"]["min_steps"]) == (16, 1)


def test_a_guest_with_parameters_and_sound(start: Callable[..., Any]) -> None:
    server = start()
    server.dispatcher.card_ = dataclasses.replace(
        CARD,
        is_guest=True,
        has_audio=True,
        tasks=("image-edit",),
        inputs={"image-edit": (Accepts("reference", max_count=3), Accepts("mask", required=False))},
        parameters=(Parameter("true_cfg_scale", 0, 20, 4.0), Parameter("guidance_scale_2", 0, 10, None)),
    )
    model = server.http().get("/v1/models/tiny").raise_for_status().json()
    assert (model["guest"], model["has_audio"]) == (True, True)
    assert model["features"] == {"step_batching": False, "preview": False, "checkpoint": False, "cancel": True}
    assert model["inputs"]["image-edit"] == [
        {"role": "reference", "required": True, "max_count": 3},
        {"role": "mask", "required": False, "max_count": 1},
    ]
    assert model["parameters"] == {
        "true_cfg_scale": {"minimum": 0, "maximum": 20, "default": 4, "integer": False},
        "guidance_scale_2": {"minimum": 0, "maximum": 10, "default": None, "integer": False},
    }


def test_the_openai_client_reads_it(server: Any) -> None:
    with server.openai() as client:
        assert client.models.retrieve("tiny").owned_by == "raydiance"
