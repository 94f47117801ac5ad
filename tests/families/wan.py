"""Wan: with one timestep a token (TI2V-5B), with two experts (T2V- and I2V-A14B), and with VACE's branch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import WanTransformer3DModel
from tests.checkpoints import BOTH, save_i2v_2_1, save_i2v_a14b, save_t2v_a14b, save_vace, save_wan
from tests.families.kit import Case, Model, clip, picture

from raydiance.models.inputs import Inputs
from raydiance.models.spec import Spec


def spec(task: str, **values: Any) -> Spec:
    base = {"height": 32, "width": 48, "num_frames": 5, "num_inference_steps": 4, "guidance_scale": 3.0, "seed": 7}
    base |= {"prompt": "a red circle moves left", "negative_prompt": "a black square"}
    return Spec(model="wan", task=task, **{**base, **values})


def save_three_heads(folder: Path) -> Path:
    """Wan 2.1's kind, one timestep for all tokens, with another number of heads than `save_wan` gives."""
    save_wan(folder, expand_timesteps=False)
    torch.manual_seed(4)
    config = WanTransformer3DModel.load_config(folder / "transformer")
    WanTransformer3DModel.from_config(config, num_attention_heads=3).save_pretrained(folder / "transformer")
    return folder


FIRST, LAST = {"first_frame": [picture(48, 32)]}, {"last_frame": [picture(48, 32, seed=1)]}
REFERENCES = {"reference": [picture(40, 70, seed=2), picture(64, 24, seed=3)]}
MASK = np.zeros((5, 32, 48), np.uint8)
MASK[:, 8:24, 16:40] = 255
MASK[3:, :, :16] = 255

TI2V = (
    Case("t2v", spec("text-to-video")),
    Case("t2i", spec("text-to-image", num_frames=1)),
    Case("i2v", spec("image-to-video"), Inputs(FIRST)),
    Case("i2i", spec("image-to-image", num_frames=1, strength=0.8), Inputs({"init": [picture(48, 32)]})),
    Case("v2v", spec("video-to-video", strength=0.8), Inputs(video=clip(48, 32, 5))),
)
SECOND = {"extra": {"guidance_scale_2": 2.0}}
T2V_A14B = (
    Case("t2v", spec("text-to-video", **SECOND)),
    Case("t2i", spec("text-to-image", num_frames=1, **SECOND)),
)
I2V_A14B = (
    Case("i2v", spec("image-to-video", **SECOND), Inputs(FIRST)),
    Case("i2v-last-frame", spec("image-to-video", **SECOND), Inputs(FIRST | LAST)),
)
I2V_2_1 = (Case("i2v", spec("image-to-video"), Inputs(FIRST)),)
FLF2V_2_1 = (Case("flf2v", spec("image-to-video"), Inputs(FIRST | LAST)),)
SCALE = {"extra": {"conditioning_scale": 0.7}}
VACE = (
    Case("t2v", spec("text-to-video", **SCALE), Inputs()),
    Case("t2i", spec("text-to-image", num_frames=1, **SCALE), Inputs()),
    Case("r2v", spec("reference-to-video", **SCALE), Inputs(REFERENCES)),
    Case("v2v", spec("video-to-video", **SCALE), Inputs(video=clip(48, 32, 5))),
    Case("v2v-mask", spec("video-to-video", **SCALE), Inputs(REFERENCES, clip(48, 32, 5), MASK)),
    Case("i2v", spec("image-to-video", **SCALE), Inputs(FIRST)),
    Case("i2v-last-frame", spec("image-to-video", **SCALE), Inputs(FIRST | LAST)),
)
VACE_2_2 = (Case("r2v", spec("reference-to-video", extra={**SCALE["extra"], **SECOND["extra"]}), Inputs(REFERENCES)),)
MODELS = (
    Model("wan-ti2v", save_wan, TI2V),
    Model("wan-t2v-a14b", save_t2v_a14b, T2V_A14B),
    Model("wan-i2v-a14b", save_i2v_a14b, I2V_A14B),
    Model("wan-vace", save_vace, VACE),
    Model("wan-vace-2-2", partial(save_vace, experts=BOTH), VACE_2_2),
    Model("wan-i2v-2-1", save_i2v_2_1, I2V_2_1),
    Model("wan-flf2v-2-1", partial(save_i2v_2_1, embedded_frames=2), FLF2V_2_1),
)
THREE_HEADS = Model("wan-3-heads", save_three_heads, ())
"""Those of the others can be dealt out over two ranks."""
