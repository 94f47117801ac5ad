"""FLUX.1 dev, schnell and Kontext: random weights of the real classes."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    FluxKontextPipeline,
    FluxPipeline,
    FluxTransformer2DModel,
)
from tests.families.kit import Case, Model, picture
from tests.families.words import t5_tokenizer, vocabulary
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from raydiance.models.card import Defaults
from raydiance.models.inputs import Inputs
from raydiance.models.spec import Spec

MAX_SEQUENCE_LENGTH = 12
LAYERS, SINGLE_LAYERS = 2, 2


@dataclass(frozen=True)
class Kind:
    """Args:
    levels: of the VAE, each but the first halves the sides; 6 keep Kontext's references of a megapixel at 256 tokens.
    """

    pipeline: type
    guidance_embeds: bool
    scheduler: FlowMatchEulerDiscreteScheduler
    defaults: Defaults
    levels: int = 4


DYNAMIC = FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True)
_DEV = Defaults(height=48, width=80, num_frames=1, fps=1, num_inference_steps=4, guidance_scale=3.5, strength=0.6)
KINDS = {
    "dev": Kind(FluxPipeline, True, DYNAMIC, _DEV),
    "schnell": Kind(FluxPipeline, False, FlowMatchEulerDiscreteScheduler(), replace(_DEV, guidance_scale=0.0)),
    "kontext": Kind(FluxKontextPipeline, True, DYNAMIC, replace(_DEV, height=128, width=192), levels=6),
}


def save_flux(folder: Path, kind: str, *, heads: int = 2) -> Path:
    """Writes the folder and returns it. Transformer: 2 double and 2 single blocks, of heads of 16 channels."""
    made = KINDS[kind]
    torch.manual_seed(0)
    transformer = FluxTransformer2DModel(
        in_channels=16,
        num_layers=LAYERS,
        num_single_layers=SINGLE_LAYERS,
        attention_head_dim=16,
        num_attention_heads=heads,
        joint_attention_dim=24,
        pooled_projection_dim=16,
        guidance_embeds=made.guidance_embeds,
        axes_dims_rope=(4, 4, 8),
    )
    vae = AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * made.levels,
        up_block_types=["UpDecoderBlock2D"] * made.levels,
        block_out_channels=[4] * made.levels,
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=2,
        scaling_factor=0.36,
        shift_factor=0.12,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )
    clip = CLIPTextConfig(
        vocab_size=len(vocabulary()),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    t5 = T5Config(vocab_size=len(vocabulary()), d_model=24, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    text_encoder, text_encoder_2 = CLIPTextModel(clip), T5EncoderModel(t5)
    for module in (transformer, vae, text_encoder, text_encoder_2):
        _disturb(module)
    pipeline = made.pipeline(
        scheduler=made.scheduler,
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=t5_tokenizer(model_max_length=77),
        text_encoder_2=text_encoder_2,
        tokenizer_2=t5_tokenizer(model_max_length=512),
        transformer=transformer,
    )
    pipeline.save_pretrained(folder, safe_serialization=True)
    own = {"max_sequence_length": MAX_SEQUENCE_LENGTH, "defaults": asdict(made.defaults)}
    (folder / "raydiance.json").write_text(json.dumps(own))
    return folder


def _disturb(module: torch.nn.Module) -> None:
    """Weights that start at 0 or 1 would hide what goes through them."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn_like(parameter)


def spec(task: str, kind: str, *, true_cfg_scale: float = 1.0, **values: Any) -> Spec:
    d = KINDS[kind].defaults
    base = {"height": d.height, "width": d.width, "num_inference_steps": 4, "guidance_scale": d.guidance_scale}
    base |= {"prompt": "a red circle moves left", "negative_prompt": "a black square", "seed": 7, "num_frames": 1}
    base |= {"strength_rounds_up": True, "extra": {"true_cfg_scale": true_cfg_scale}}
    return Spec(model=f"flux-{kind}", task=task, **{**base, **values})


def given(role: str, width: int = 80, height: int = 48) -> Inputs:
    return Inputs({role: [picture(width, height)]})


MODELS = (
    Model(
        "flux-dev",
        functools.partial(save_flux, kind="dev"),
        (
            Case("t2i", spec("text-to-image", "dev")),
            Case("t2i-true-cfg", spec("text-to-image", "dev", true_cfg_scale=4.0)),
            Case("i2i", spec("image-to-image", "dev", strength=0.6), given("init")),
        ),
    ),
    Model(
        "flux-schnell",
        functools.partial(save_flux, kind="schnell"),
        (
            Case("t2i", spec("text-to-image", "schnell")),
            Case("i2i", spec("image-to-image", "schnell", strength=0.6), given("init")),
        ),
    ),
    Model(
        "flux-kontext",
        functools.partial(save_flux, kind="kontext"),
        (
            Case("edit", spec("image-edit", "kontext"), given("reference", 180, 120)),
            Case("t2i", spec("text-to-image", "kontext", true_cfg_scale=2.0)),
        ),
    ),
)
THREE_HEADS = Model("flux-3-heads", functools.partial(save_flux, kind="dev", heads=3), ())
"""Those of the others can be dealt out over two ranks."""
