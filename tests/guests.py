"""Tiny checkpoints of pipelines that no family serves, with random weights in diffusers' and transformers' classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderDC,
    AutoencoderKLLTXVideo,
    AutoencoderKLQwenImage,
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    LTXImageToVideoPipeline,
    LTXVideoTransformer3DModel,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
    SanaPipeline,
    SanaTransformer2DModel,
)
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    Gemma2Config,
    Gemma2Model,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    T5Config,
    T5EncoderModel,
)

WORDS = ["<pad>", "<bos>", "</s>", "<unk>", "a", "the", "red", "blue", "black", "circle", "square", "warm", "image"]


def save_sana(folder: Path) -> Path:
    """Linear attention and a VAE that makes 32 pixels of one latent. The smallest that it generates is 512x512."""
    torch.manual_seed(0)
    channels, layers = (4,) * 6, (1,) * 6
    vae = AutoencoderDC(
        latent_channels=4,
        attention_head_dim=2,
        encoder_block_types="ResBlock",
        decoder_block_types="ResBlock",
        encoder_block_out_channels=channels,
        decoder_block_out_channels=channels,
        encoder_layers_per_block=layers,
        decoder_layers_per_block=layers,
        encoder_qkv_multiscales=((),) * 6,
        decoder_qkv_multiscales=((),) * 6,
        downsample_block_type="conv",
        upsample_block_type="interpolate",
        scaling_factor=0.41407,
    )
    transformer = SanaTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=2,
        num_attention_heads=2,
        attention_head_dim=8,
        num_cross_attention_heads=2,
        cross_attention_head_dim=8,
        cross_attention_dim=16,
        caption_channels=8,
        sample_size=16,
    )
    encoder = Gemma2Model(
        Gemma2Config(
            vocab_size=len(WORDS),
            hidden_size=8,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=8,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )
    )
    parts = {"text_encoder": encoder, "vae": vae, "transformer": transformer}
    return _save(folder, SanaPipeline, parts, height=512, width=512, guidance_scale=4.5)


def save_qwen_image(folder: Path) -> Path:
    """Guided by `true_cfg_scale`; its text encoder is a language model that sees pictures too."""
    torch.manual_seed(1)
    vae = AutoencoderKLQwenImage(
        base_dim=4,
        z_dim=4,
        dim_mult=[1, 1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )
    transformer = QwenImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(8, 4, 4),
    )
    text = {
        "vocab_size": len(WORDS),
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "rope_parameters": {"mrope_section": [1, 1, 2], "rope_type": "default", "rope_theta": 1e6},
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 16}
    encoder = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision))
    parts = {"text_encoder": encoder, "vae": vae, "transformer": transformer}
    return _save(folder, QwenImagePipeline, parts, height=64, width=96, guidance_scale=1.0)


def save_ltx_video(folder: Path) -> Path:
    """Image to video; 4 pixels and 4 frames of one latent."""
    torch.manual_seed(2)
    channels, layers, scaled = (8,) * 4, (1,) * 5, (True, True, False, False)
    vae = AutoencoderKLLTXVideo(
        latent_channels=8,
        block_out_channels=channels,
        decoder_block_out_channels=channels,
        layers_per_block=layers,
        decoder_layers_per_block=layers,
        spatio_temporal_scaling=scaled,
        decoder_spatio_temporal_scaling=scaled,
        patch_size=1,
        patch_size_t=1,
    )
    transformer = LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=8,
        cross_attention_dim=16,
        num_layers=1,
        caption_channels=16,
    )
    encoder = T5EncoderModel(
        T5Config(vocab_size=len(WORDS), d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, dropout_rate=0.0)
    )
    parts = {"text_encoder": encoder, "vae": vae, "transformer": transformer}
    return _save(folder, LTXImageToVideoPipeline, parts, height=32, width=64, guidance_scale=3.0, num_frames=9)


def _save(folder: Path, kind: type[DiffusionPipeline], parts: dict[str, Any], **defaults: float) -> Path:
    with torch.no_grad():
        for module in parts.values():
            for parameter in module.parameters():  # zeros would hide what prompts and steps do
                parameter.add_(0.05 * torch.randn_like(parameter))
    kind(tokenizer=_tokenizer(), scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), **parts).save_pretrained(folder)
    defaults = {"num_frames": 1, "fps": 8, "num_inference_steps": 3, **defaults}
    (folder / "raydiance.json").write_text(json.dumps({"defaults": defaults}))
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="</s>", unk_token="<unk>"
    )
