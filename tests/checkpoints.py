"""Tiny Wan checkpoints with random weights, in diffusers' and transformers' real classes, saved as folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKLWan,
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
    WanImageToVideoPipeline,
    WanPipeline,
    WanTransformer3DModel,
    WanVACEPipeline,
    WanVACETransformer3DModel,
)
from tests.families.words import t5_tokenizer, vocabulary
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
    UMT5Config,
    UMT5EncoderModel,
)

MAX_SEQUENCE_LENGTH = 12
BOTH = ("transformer", "transformer_2")
SCHEDULERS = {
    "unipc": UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0),
    "euler": FlowMatchEulerDiscreteScheduler(shift=3.0),
}


def save_wan(
    folder: Path,
    *,
    pipeline: type[DiffusionPipeline] = WanPipeline,
    expand_timesteps: bool = True,
    scheduler: str = "unipc",
    experts: tuple[str, ...] = ("transformer",),
    boundary_ratio: float | None = None,
    embedded_frames: int = 0,
    seed: int = 0,
) -> Path:
    """Writes the folder and returns it. VAE: 4x in time, 8x in space, 4 channels; transformer: 2 blocks of 2 heads."""
    torch.manual_seed(seed)
    vae = AutoencoderKLWan(
        base_dim=4,
        z_dim=4,
        dim_mult=[1, 1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.1, -0.2, 0.3, 0.0],
        latents_std=[1.1, 0.9, 1.3, 0.7],
    )
    if pipeline is not WanPipeline:
        with torch.no_grad():
            vae.encoder.conv_out.weight.mul_(32.0)  # random, it tells one picture from another by hundredths
    by_channels = pipeline is WanImageToVideoPipeline and not expand_timesteps
    transformers = {name: _transformer(pipeline is WanVACEPipeline, by_channels, embedded_frames) for name in experts}
    config = UMT5Config(
        vocab_size=len(vocabulary()), d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0
    )
    pipe = pipeline(
        tokenizer=t5_tokenizer(),
        text_encoder=UMT5EncoderModel(config),
        vae=vae,
        scheduler=SCHEDULERS[scheduler],
        boundary_ratio=boundary_ratio,
        **transformers,
        **(_image_encoder() if embedded_frames else {}),
        **({} if pipeline is WanVACEPipeline else {"expand_timesteps": expand_timesteps}),
    )
    pipe.save_pretrained(folder, safe_serialization=True)
    own = {
        "max_sequence_length": 512 if embedded_frames else MAX_SEQUENCE_LENGTH,
        "defaults": {
            "height": 32,
            "width": 48,
            "num_frames": 5,
            "fps": 8,
            "num_inference_steps": 4,
            "guidance_scale": 3.0,
        },
    }
    (folder / "raydiance.json").write_text(json.dumps(own))
    return folder


def save_t2v_a14b(folder: Path, *, scheduler: str = "unipc") -> Path:
    """Two experts: of 4 steps, two are above the boundary and two below it."""
    return save_wan(folder, expand_timesteps=False, scheduler=scheduler, experts=BOTH, boundary_ratio=0.8)


def save_i2v_a14b(folder: Path, *, scheduler: str = "unipc") -> Path:
    """Two experts, which take given frames as 8 channels beside the latents' 4."""
    return save_wan(
        folder,
        pipeline=WanImageToVideoPipeline,
        expand_timesteps=False,
        scheduler=scheduler,
        experts=BOTH,
        boundary_ratio=0.8,
        seed=1,
    )


def save_i2v_2_1(folder: Path, *, scheduler: str = "unipc", embedded_frames: int = 1) -> Path:
    """One expert, and an image encoder of 5 tokens a frame that sees the first frame; with 2, the last one too."""
    return save_wan(
        folder,
        pipeline=WanImageToVideoPipeline,
        expand_timesteps=False,
        scheduler=scheduler,
        embedded_frames=embedded_frames,
        seed=3,
    )


def save_vace(folder: Path, *, scheduler: str = "unipc", experts: tuple[str, ...] = ("transformer",)) -> Path:
    """Wan 2.1 VACE, or 2.2 with two experts: a VACE block beside each of two blocks."""
    return save_wan(
        folder,
        pipeline=WanVACEPipeline,
        expand_timesteps=False,
        scheduler=scheduler,
        experts=experts,
        boundary_ratio=0.8 if experts == BOTH else None,
        seed=2,
    )


def _transformer(
    vace: bool, by_channels: bool, embedded_frames: int
) -> WanTransformer3DModel | WanVACETransformer3DModel:
    common = {
        "patch_size": (1, 2, 2),
        "num_attention_heads": 2,
        "attention_head_dim": 12,
        "in_channels": 12 if by_channels else 4,
        "out_channels": 4,
        "text_dim": 16,
        "freq_dim": 32,
        "ffn_dim": 48,
        "num_layers": 2,
        "rope_max_seq_len": 64,
    }
    if vace:
        return WanVACETransformer3DModel(**common, vace_layers=[0, 1], vace_in_channels=8 + 64)
    if not embedded_frames:
        return WanTransformer3DModel(**common)
    transformer = WanTransformer3DModel(
        **common, image_dim=16, added_kv_proj_dim=24, pos_embed_seq_len=10 if embedded_frames == 2 else None
    )
    if embedded_frames == 2:
        torch.nn.init.normal_(transformer.condition_embedder.image_embedder.pos_embed)
    return transformer


def _image_encoder() -> dict[str, Any]:
    config = CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=28,
        patch_size=14,
        projection_dim=16,
    )
    side = {"height": 28, "width": 28}
    return {
        "image_encoder": CLIPVisionModelWithProjection(config),
        "image_processor": CLIPImageProcessor(size={"shortest_edge": 28}, crop_size=side),
    }
