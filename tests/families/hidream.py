"""HiDream-I1 Full, Dev and Fast: random weights of the real classes, each of its own scheduler."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchLCMScheduler,
    HiDreamImagePipeline,
    HiDreamImageTransformer2DModel,
    UniPCMultistepScheduler,
)
from tests.families.kit import Case, Model, picture
from tests.families.words import t5_tokenizer, vocabulary
from transformers import (
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5EncoderModel,
)

from raydiance.models.inputs import Inputs
from raydiance.models.spec import Spec

MAX_SEQUENCE_LENGTH = 12
MAX_RESOLUTION = 16
"""Latents a side: with the VAE's factor of 2, 32x32 pixels, or about as many in another shape."""
LAYERS, SINGLE_LAYERS = 2, 2
SCHEDULERS = {
    "full": UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0),
    "dev": FlowMatchLCMScheduler(shift=6.0),
    "fast": FlowMatchLCMScheduler(shift=3.0),
    "euler": FlowMatchEulerDiscreteScheduler(shift=3.0),
    "dynamic": FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
}


def save_hidream(
    folder: Path, kind: str, *, llama: Path | None = None, heads: int = 4, max_resolution: int = MAX_RESOLUTION
) -> Path:
    """Writes the folder and returns it.

    Args:
        kind: of `SCHEDULERS`.
        llama: where the Llama encoder and its tokenizer go, as one transformers repository, instead of the folder.
        max_resolution: latents a side.
    """
    torch.manual_seed(0)
    transformer = HiDreamImageTransformer2DModel(
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=LAYERS,
        num_single_layers=SINGLE_LAYERS,
        attention_head_dim=8,
        num_attention_heads=heads,
        caption_channels=[24, 16],
        text_emb_dim=20,
        num_routed_experts=4,
        num_activated_experts=2,
        axes_dims_rope=(4, 2, 2),
        max_resolution=(max_resolution, max_resolution),
        llama_layers=(0, 1, 2, 2),
    )
    vae = AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2,
        block_out_channels=[4, 8],
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=2,
        scaling_factor=0.36,
        shift_factor=0.12,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )
    t5 = T5Config(vocab_size=len(vocabulary()), d_model=24, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    text_encoder_4 = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary()),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=3,
            num_attention_heads=2,
            num_key_value_heads=1,
            bos_token_id=0,
            eos_token_id=1,
        )
    )
    components = {
        "vae": vae,
        "text_encoder": _clip(projection_dim=8),
        "text_encoder_2": _clip(projection_dim=12),
        "text_encoder_3": T5EncoderModel(t5),
        "text_encoder_4": text_encoder_4,
        "transformer": transformer,
    }
    for module in components.values():
        _disturb(module)
    tokenizers = {f"tokenizer{n}": t5_tokenizer(model_max_length=512) for n in ("", "_2", "_3", "_4")}
    pipeline = HiDreamImagePipeline(scheduler=SCHEDULERS[kind], **components, **tokenizers)
    if llama is not None:
        text_encoder_4.save_pretrained(llama, safe_serialization=True)
        pipeline.tokenizer_4.save_pretrained(llama)
        pipeline.register_modules(text_encoder_4=None, tokenizer_4=None)
    pipeline.save_pretrained(folder, safe_serialization=True)
    (folder / "raydiance.json").write_text(json.dumps({"max_sequence_length": MAX_SEQUENCE_LENGTH}))
    return folder


def _clip(projection_dim: int) -> CLIPTextModelWithProjection:
    config = CLIPTextConfig(
        vocab_size=len(vocabulary()),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        projection_dim=projection_dim,
        max_position_embeddings=MAX_SEQUENCE_LENGTH,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    return CLIPTextModelWithProjection(config)


def _disturb(module: torch.nn.Module) -> None:
    """Weights that start at 0 or 1 would hide what goes through them."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn_like(parameter)


def spec(task: str, kind: str, **values: Any) -> Spec:
    base = {"height": 28, "width": 36, "num_frames": 1, "num_inference_steps": 4, "seed": 7}
    base |= {"prompt": "a red circle moves left", "negative_prompt": "a black square"}
    base |= {"guidance_scale": 0.0 if isinstance(SCHEDULERS[kind], FlowMatchLCMScheduler) else 3.0}
    return Spec(model=f"hidream-{kind}", task=task, **{**base, **values})


def given(width: int = 36, height: int = 28, seed: int = 0) -> Inputs:
    return Inputs({"init": [picture(width, height, seed)]})


def _cases(kind: str) -> tuple[Case, ...]:
    return (
        Case("t2i", spec("text-to-image", kind)),
        Case("t2i-square", spec("text-to-image", kind, height=32, width=32)),
        Case("i2i", spec("image-to-image", kind, strength=0.8), given()),
    )


def llama_elsewhere(folder: Path) -> dict[str, str]:
    """`LoadOptions.components` of a folder that was saved with its Llama beside it."""
    return dict.fromkeys(("text_encoder_4", "tokenizer_4"), str(llama_of(folder)))


def llama_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-llama")


MODELS = (
    Model("hidream-full", functools.partial(save_hidream, kind="full"), _cases("full")),
    Model(
        "hidream-fast",
        lambda folder: save_hidream(folder, "fast", llama=llama_of(folder)),
        _cases("fast"),
        components=llama_elsewhere,
    ),
)
ODD = Model("hidream-odd", functools.partial(save_hidream, kind="full", max_resolution=14), ())
"""A picture of 49 tokens, where the others have 64."""
THREE_HEADS = Model("hidream-3-heads", functools.partial(save_hidream, kind="full", heads=3, max_resolution=14), ())
"""As few tokens. Four heads, as the others have, can be dealt out over two ranks, and four."""
