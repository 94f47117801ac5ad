"""A tiny Wan checkpoint with random weights, in diffusers' and transformers' real classes, saved as a folder."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLWan,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
)
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

WORDS = ["<pad>", "</s>", "<unk>", "a", "the", "red", "blue", "black", "circle", "square", "moves", "left", "over"]
MAX_SEQUENCE_LENGTH = 12
SCHEDULERS = {
    "unipc": UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0),
    "euler": FlowMatchEulerDiscreteScheduler(shift=3.0),
}


def save_wan(folder: Path, *, expand_timesteps: bool = True, scheduler: str = "unipc", seed: int = 0) -> Path:
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
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=32,
        ffn_dim=48,
        num_layers=2,
        rope_max_seq_len=64,
    )
    config = UMT5Config(vocab_size=len(WORDS), d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0)
    pipe = WanPipeline(
        tokenizer=_tokenizer(),
        text_encoder=UMT5EncoderModel(config),
        vae=vae,
        scheduler=SCHEDULERS[scheduler],
        transformer=transformer,
        expand_timesteps=expand_timesteps,
    )
    pipe.save_pretrained(folder, safe_serialization=True)
    own = {
        "max_sequence_length": MAX_SEQUENCE_LENGTH,
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


def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", padding_side="right"
    )
