"""Wan with one expert: random weights, one timestep a token."""

from __future__ import annotations

from typing import Any

from tests.checkpoints import save_wan
from tests.families.kit import Case, Model, clip, picture

from raydiance.models.inputs import Inputs
from raydiance.models.spec import Spec


def spec(task: str, **values: Any) -> Spec:
    base = {"height": 32, "width": 48, "num_frames": 5, "num_inference_steps": 4, "guidance_scale": 3.0, "seed": 7}
    base |= {"prompt": "a red circle moves left", "negative_prompt": "a black square"}
    return Spec(model="wan", task=task, **{**base, **values})


CASES = (
    Case("t2v", spec("text-to-video")),
    Case("t2i", spec("text-to-image", num_frames=1)),
    Case("i2v", spec("image-to-video"), Inputs({"first_frame": [picture(48, 32)]})),
    Case("i2i", spec("image-to-image", num_frames=1, strength=0.8), Inputs({"init": [picture(48, 32)]})),
    Case("v2v", spec("video-to-video", strength=0.8), Inputs(video=clip(48, 32, 5))),
)
MODELS = (Model("wan-ti2v", save_wan, CASES),)
