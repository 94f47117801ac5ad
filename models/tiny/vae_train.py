"""Train the video autoencoder: `AutoencoderKLWan`, 4x in space, 4x in time.

diffusers' own initialization does not train at this size with Adam (it stays at 17 dB); `initialize` keeps the
variance through the layers, starts residual branches near zero and the posterior nearly deterministic.
"""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanAttentionBlock, WanCausalConv3d, WanResidualBlock
from torch import Tensor, nn

from raydiance.models.tiny import world
from raydiance.models.tiny.optim import Muon
from raydiance.models.tiny.team import Team

logger = logging.getLogger(__name__)

LEARNING_RATE = 2e-3
KL_WEIGHT = 1e-3
DECODER_NOISE = 0.1  # of the latents' deviation, so that the decoder forgives the transformer's small errors
BATCHES = ((5, 8), (9, 5), (9, 5), (5, 8), (17, 3))  # (frames, clips): about the same work each
CONFIG = {
    "base_dim": 8,
    "dim_mult": [1, 2, 4],
    "num_res_blocks": 1,
    "attn_scales": [],
    "temperal_downsample": [True, True],
    "scale_factor_temporal": 4,
    "scale_factor_spatial": 4,
}


def build(z_dim: int) -> AutoencoderKLWan:
    vae = AutoencoderKLWan(z_dim=z_dim, latents_mean=[0.0] * z_dim, latents_std=[1.0] * z_dim, **CONFIG)
    initialize(vae, z_dim)
    return vae


@torch.no_grad()
def initialize(vae: AutoencoderKLWan, z_dim: int) -> None:
    for module in vae.modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, WanCausalConv3d) and module.weight.shape[2:4] == (3, 3):
            module.weight[:, :, :2] *= 0.3  # kernels start on their last frame, the current one
            module.weight[:, :, 2] *= 3**0.5
    for module in vae.modules():
        if isinstance(module, WanResidualBlock):
            nn.init.normal_(module.conv2.weight, std=0.1 * module.conv2.weight[0].numel() ** -0.5)
        if isinstance(module, WanAttentionBlock):
            nn.init.zeros_(module.proj.weight)
    vae.quant_conv.weight[z_dim:] *= 0.1
    vae.quant_conv.bias[z_dim:] = -4.0
    vae.decoder.conv_out.weight *= 0.3
    for param in vae.parameters():
        if param.ndim == 5:  # a fifth faster on CPUs
            param.data = param.data.contiguous(memory_format=torch.channels_last_3d)


def to_tensor(clips: list[world.Clip]) -> Tensor:
    """uint8 clips of [T, H, W, 3] to [B, 3, T, H, W] in -1..1."""
    return torch.from_numpy(np.stack(clips)).permute(0, 4, 1, 2, 3).contiguous().float() / 127.5 - 1


def decode(vae: AutoencoderKLWan, latents: Tensor) -> Tensor:
    """`vae.decode` without its clamp to -1..1, which has no gradient outside: [B, C, t, h, w] -> [B, 3, T, H, W]."""
    vae.clear_cache()
    hidden = vae.post_quant_conv(latents)
    frames = []
    for i in range(latents.shape[2]):
        vae._conv_idx = [0]
        chunk = hidden[:, :, i : i + 1]
        frames.append(vae.decoder(chunk, feat_cache=vae._feat_map, feat_idx=vae._conv_idx, first_chunk=i == 0))
    vae.clear_cache()
    return torch.cat(frames, 2)


def reconstruction_loss(decoded: Tensor, clips: Tensor) -> Tensor:
    """L1, squared error with the object weighted up, and edges; both [B, 3, T, H, W]."""
    error = decoded - clips
    # The corner pixel of the first frame is always background.
    is_object = (clips - clips[:, :, :1, :1, :1]).abs().amax(1, keepdim=True).gt(0.2)
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    loss: Tensor = error.abs().mean() + ((1 + 6 * is_object.float()) * error.square()).mean() + 0.5 * edges
    return loss


@torch.no_grad()
def psnr(vae: AutoencoderKLWan, num_frames: int = world.NUM_FRAMES) -> tuple[float, float]:
    """Mean PSNR in dB over 30 unseen clips: of all pixels, and of those of the object."""
    rng = np.random.default_rng(77)
    clips = to_tensor([world.render(spec, rng, num_frames) for spec in world.sample_specs(rng, 30, world.all_specs())])
    error = (vae.decode(vae.encode(clips).latent_dist.mode()).sample - clips).square().mean(1) / 4
    is_object = (clips - clips[:, :, :1, :1, :1]).abs().amax(1).gt(0.2)
    return -10 * float(error.mean((1, 2, 3)).log10().mean()), -10 * math.log10(float(error[is_object].mean()))


def train(
    vae: AutoencoderKLWan,
    seconds: float,
    seed: int,
    team: Team,
    out: Path | None = None,
    decoder_only: bool = False,
    learning_rate: float = LEARNING_RATE,
) -> None:
    """Train in place for `seconds` of wall time; `out`, if given, receives a copy every 200 steps.

    `decoder_only` leaves the latent space as it is, so that a transformer trained on it stays valid.
    """
    rng = np.random.default_rng((seed, team.rank))
    torch.manual_seed(seed + 1000 * team.rank)
    if decoder_only:
        vae.encoder.requires_grad_(False)
        vae.quant_conv.requires_grad_(False)
    params = [param for param in vae.parameters() if param.requires_grad]
    kernels = [param for param in params if param.ndim >= 4 and min(param.shape[:2]) > 3]
    kernel_ids = {id(param) for param in kernels}
    rest = [param for param in params if id(param) not in kernel_ids]
    muon = Muon(kernels, lr=0.0, momentum=0.9)
    adam = torch.optim.AdamW(rest, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
    start, elapsed_s, step = time.monotonic(), 0.0, 0
    losses: list[float] = []
    while (progress := elapsed_s / seconds) < 1:
        lr = learning_rate * min(1.0, (step + 1) / 30) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
        muon.param_groups[0]["lr"], adam.param_groups[0]["lr"] = 10 * lr, lr
        loss = _loss(vae, *BATCHES[step % len(BATCHES)], rng, decoder_only)
        vae.zero_grad(set_to_none=True)
        loss.backward()
        elapsed_s = team.average(params, time.monotonic() - start)
        nn.utils.clip_grad_norm_(params, 1.0)
        muon.step()
        adam.step()
        step += 1
        losses.append(loss.item())
        if step % 100 == 0:
            logger.info("vae step %d, %.0f s, loss %.4f", step, elapsed_s, np.mean(losses[-100:]))
        if step % 200 == 0 and out is not None and team.rank == 0:
            logger.info("vae psnr %.1f dB, object %.1f dB", *psnr(vae))
            vae.save_pretrained(out)
    vae.requires_grad_(True)
    if team.rank == 0:
        logger.info("vae done: %d steps, psnr %.1f dB, object %.1f dB", step, *psnr(vae))


def _loss(vae: AutoencoderKLWan, num_frames: int, batch: int, rng: np.random.Generator, decoder_only: bool) -> Tensor:
    """The loss of one batch of fresh clips."""
    specs = world.sample_specs(rng, batch, world.all_specs())
    clips = to_tensor([world.render(spec, rng, num_frames) for spec in specs])
    if decoder_only:
        with torch.no_grad():
            mean = vae._encode(clips).chunk(2, dim=1)[0]
        return reconstruction_loss(decode(vae, mean + DECODER_NOISE * mean.std() * torch.randn_like(mean)), clips)
    mean, log_var = vae._encode(clips).chunk(2, dim=1)
    latents = mean + (0.5 * log_var.clamp(-20, 10)).exp() * torch.randn_like(mean)
    kl = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).mean()
    total: Tensor = reconstruction_loss(decode(vae, latents), clips) + KL_WEIGHT * kl
    return total
