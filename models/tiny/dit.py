"""The transformer, its text encoder and the flow-matching loss that trains both.

Shapes: B clips, C latent channels, t latent frames, h x w latent pixels, L text tokens, D text width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from diffusers import WanTransformer3DModel
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from raydiance.models.tiny.tokenizer import EOS, MAX_SEQUENCE_LENGTH, PAD, UNK

PATCH = 2
TRANSFORMER_CONFIG: dict[str, Any] = {
    "patch_size": (1, PATCH, PATCH),
    "num_attention_heads": 4,
    "attention_head_dim": 32,
    "text_dim": 64,
    "freq_dim": 128,
    "ffn_dim": 512,
    "num_layers": 6,
    "cross_attn_norm": True,
    "qk_norm": "rms_norm_across_heads",
    "rope_max_seq_len": 1024,
}
TEXT_CONFIG: dict[str, Any] = {
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 128,
    "num_layers": 1,
    "num_heads": 4,
    "dropout_rate": 0.0,
    "feed_forward_proj": "gated-gelu",
    "is_encoder_decoder": False,
    "use_cache": False,
}
NUM_TRAIN_TIMESTEPS = 1000


def build_transformer(z_dim: int) -> WanTransformer3DModel:
    """A Wan transformer that starts as the zero velocity, with its blocks' gates ajar."""
    transformer = WanTransformer3DModel(in_channels=z_dim, out_channels=z_dim, **TRANSFORMER_CONFIG)
    for module in transformer.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    nn.init.zeros_(transformer.proj_out.weight)
    nn.init.normal_(transformer.condition_embedder.time_proj.weight, std=0.02)
    with torch.no_grad():
        transformer.scale_shift_table.zero_()
        for block in transformer.blocks:
            block.scale_shift_table.zero_()
            block.scale_shift_table[:, (2, 5)] = 0.3
            block.attn2.to_out[0].weight.mul_(0.3)
    return transformer


def build_text_encoder(tokenizer: PreTrainedTokenizerFast) -> UMT5EncoderModel:
    pad, eos = tokenizer.convert_tokens_to_ids([PAD, EOS])
    return UMT5EncoderModel(UMT5Config(vocab_size=len(tokenizer), pad_token_id=pad, eos_token_id=eos, **TEXT_CONFIG))


def encode_text(
    text_encoder: UMT5EncoderModel,
    tokenizer: PreTrainedTokenizerFast,
    captions: list[str],
    length: int = MAX_SEQUENCE_LENGTH,
    unknown: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Tensor:
    """What WanPipeline feeds the transformer: encoded tokens, zeros after the last one. Returns [B, length, D].

    `unknown` is the probability with which each word becomes `<unk>`, so that words never seen do little harm.
    """
    tokens = tokenizer(captions, padding=True, truncation=True, max_length=length, return_tensors="pt")
    ids, mask = tokens.input_ids, tokens.attention_mask
    if rng is not None and unknown:
        unk = tokenizer.convert_tokens_to_ids(UNK)
        ids = ids.masked_fill(torch.from_numpy(rng.random(ids.shape) < unknown) & (ids > unk), unk)
    hidden = text_encoder(ids, mask).last_hidden_state * mask[..., None]
    return functional.pad(hidden, (0, 0, 0, length - hidden.shape[1]))


def sample_sigmas(rng: np.random.Generator, batch: int) -> Tensor:
    """Noise levels in 0..1, [B]: mostly logit-normal towards the noisy end, where shape and motion are decided."""
    skewed = 1 / (1 + np.exp(-rng.normal(0.8, 1.2, batch)))
    return torch.from_numpy(np.where(rng.random(batch) < 0.8, skewed, rng.random(batch))).float()


def flow_loss(
    transformer: WanTransformer3DModel, latents: Tensor, noise: Tensor, sigmas: Tensor, text: Tensor, keep_first: bool
) -> Tensor:
    """Mean squared error of the predicted velocity `noise - latents`.

    Args:
        latents, noise: [B, C, t, h, w], latents normalized.
        sigmas: [B]
        text: [B, L, D]
        keep_first: the first latent frame is given, clean, at timestep 0 (image to video as in Wan 2.2 TI2V).
    """
    target = noise - latents
    sigma = sigmas.view(-1, 1, 1, 1, 1)
    noisy = (1 - sigma) * latents + sigma * noise
    timestep = sigmas * NUM_TRAIN_TIMESTEPS
    if not keep_first:
        velocity = transformer(noisy, timestep, text, return_dict=False)[0]
        return functional.mse_loss(velocity, target)
    frame_tokens = (latents.shape[3] // PATCH) * (latents.shape[4] // PATCH)
    noisy = torch.cat([latents[:, :, :1], noisy[:, :, 1:]], dim=2)
    per_token = timestep[:, None].repeat(1, latents.shape[2] * frame_tokens)
    per_token[:, :frame_tokens] = 0
    velocity = transformer(noisy, per_token, text, return_dict=False)[0]
    return functional.mse_loss(velocity[:, :, 1:], target[:, :, 1:])
