"""What one call of a component is given, as tensors on the `meta` device: real shapes, no numbers.

Sources: the calls in diffusers' pipelines of each class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from raydiance.models.footprint import META
from raydiance.models.wan_vae import decode_frames

TEXT_TOKENS = {"flux": 512, "hidream": 128, "wan": 512, "ltx": 1024}
"""Of a prompt, by family, as its pipeline pads it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One sample. Latent sizes follow from the VAE's factors.

    Args:
        rows, cols, frames: of the latents.
        references: pictures of the sample's size that are attended to.
    batch: samples in one forward; two where both branches of guidance go together.
    """

    rows: int
    cols: int
    frames: int
    text_tokens: int
    seconds: float
    references: int = 0
    batch: int = 1
    dtype: torch.dtype = torch.bfloat16

    def empty(self, *size: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.empty(*size, device=META, dtype=dtype or self.dtype)


_CLIP_IMAGE_TOKENS = 257
Call = Callable[[], object]
Inputs = Mapping[str, Any]


def denoise_call(module: Any, shape: Shape) -> Call:
    """One forward of a transformer; raises KeyError for a class that no family here has."""
    inputs = _DENOISE[type(module).__name__](module.config, shape)
    if type(module).__name__ == "HiDreamImageTransformer2DModel":
        _route_evenly(module)
    return lambda: module(**inputs, return_dict=False)


def encode_call(module: Any, tokens: int) -> Call:
    """One forward of a text encoder over one prompt; CLIP's have a length of their own."""
    if type(module).__name__.startswith("CLIP"):
        tokens = module.config.max_position_embeddings
    ids = torch.empty(1, tokens, device=META, dtype=torch.long)
    if type(module).__name__ == "LTX2TextConnectors":
        states = torch.empty(
            1,
            tokens,
            module.config.caption_channels * module.config.text_proj_in_factor,
            device=META,
            dtype=module.dtype,
        )
        return lambda: module(states, torch.empty(1, tokens, device=META, dtype=module.dtype))
    if type(module).__name__ == "Gemma3ForConditionalGeneration":
        module = module.model.language_model
    return lambda: _text_states(module, ids)


def decode_call(module: Any, shape: Shape) -> Call:
    """What the decoder's stage does: latents to pixels or to a waveform, a given picture to embeddings."""
    name = type(module).__name__
    if name == "AutoencoderKLWan":
        z = shape.empty(1, module.config.z_dim, shape.frames, shape.rows, shape.cols)
        return lambda: [None for _ in decode_frames(module, z)]  # a frame at a time, none kept
    if name == "AutoencoderKLLTX2Video":
        z = shape.empty(1, module.config.latent_channels, shape.frames, shape.rows, shape.cols)
        return lambda: module.decode(z, return_dict=False)
    if name == "AutoencoderKLLTX2Audio":
        mel = module.config.mel_bins // 4
        z = shape.empty(1, module.config.latent_channels, _audio_frames(shape), mel)
        return lambda: module.decode(z, return_dict=False)
    if name.startswith("CLIPVision"):
        picture = shape.empty(1, 3, module.config.image_size, module.config.image_size)
        return lambda: module(pixel_values=picture)
    if name.startswith("LTX2Vocoder"):
        mel = module.config.in_channels // 2
        return lambda: module(shape.empty(1, 2, 4 * _audio_frames(shape), mel))
    z = shape.empty(1, module.config.latent_channels, shape.rows, shape.cols)
    return lambda: module.decode(z, return_dict=False)


def _text_states(module: Any, ids: torch.Tensor) -> object:
    """A mask is given whole: those that the modules make themselves look at numbers, and `meta` has none."""
    mask = torch.empty(1, 1, ids.shape[1], ids.shape[1], device=META, dtype=torch.bool)
    name = type(module).__name__
    if name.startswith("Gemma3"):
        return module(
            input_ids=ids, attention_mask={"full_attention": mask, "sliding_attention": mask}, use_cache=False
        )
    if name == "LlamaForCausalLM":
        return module.model(input_ids=ids, attention_mask=mask, use_cache=False)
    return module(input_ids=ids, attention_mask=mask)


def _audio_frames(shape: Shape) -> int:
    return round(shape.seconds * 16_000 / 160 / 4)  # LTX: sampling rate, hop length, compression


def _wan(config: Any, s: Shape) -> Inputs:
    # of the first frame, or of first and last frame, whose tokens the checkpoint has positions for
    both = config.pos_embed_seq_len
    pictures, tokens = (1, _CLIP_IMAGE_TOKENS) if both is None else (2, both // 2)
    image = None if config.image_dim is None else s.empty(pictures * s.batch, tokens, config.image_dim)
    return {
        **({} if image is None else {"encoder_hidden_states_image": image}),
        "hidden_states": s.empty(s.batch, config.in_channels, s.frames, s.rows, s.cols),
        "timestep": s.empty(s.batch, dtype=torch.float32),
        "encoder_hidden_states": s.empty(s.batch, s.text_tokens, config.text_dim),
    }


def _wan_vace(config: Any, s: Shape) -> Inputs:
    return {
        **_wan(config, s),
        "control_hidden_states": s.empty(s.batch, config.vace_in_channels, s.frames, s.rows, s.cols),
        "control_hidden_states_scale": s.empty(len(config.vace_layers)),
    }


def _flux(config: Any, s: Shape) -> Inputs:
    tokens = (s.rows // 2) * (s.cols // 2) * (1 + s.references)
    return {
        "hidden_states": s.empty(s.batch, tokens, config.in_channels),
        "encoder_hidden_states": s.empty(s.batch, s.text_tokens, config.joint_attention_dim),
        "pooled_projections": s.empty(s.batch, config.pooled_projection_dim),
        "timestep": s.empty(s.batch),
        "img_ids": s.empty(tokens, 3),
        "txt_ids": s.empty(s.text_tokens, 3),
        "guidance": s.empty(s.batch, dtype=torch.float32) if config.guidance_embeds else None,
    }


def _hidream(config: Any, s: Shape) -> Inputs:
    layers = len(set(config.llama_layers))
    return {
        "hidden_states": s.empty(s.batch, config.in_channels, s.rows, s.cols),
        "timesteps": s.empty(s.batch, dtype=torch.float32),
        "encoder_hidden_states_t5": s.empty(s.batch, s.text_tokens, config.caption_channels[0]),
        "encoder_hidden_states_llama3": s.empty(layers, s.batch, s.text_tokens, config.caption_channels[1]),
        "pooled_embeds": s.empty(s.batch, config.text_emb_dim),
    }


def _ltx(config: Any, s: Shape) -> Inputs:
    tokens, audio_frames = s.frames * s.rows * s.cols, _audio_frames(s)
    video_width, audio_width = config.caption_channels, config.caption_channels
    if not config.use_prompt_embeddings:  # 2.3: the connectors project to the widths of the two streams
        video_width, audio_width = config.cross_attention_dim, config.audio_cross_attention_dim
    return {
        "hidden_states": s.empty(s.batch, tokens, config.in_channels),
        "audio_hidden_states": s.empty(s.batch, audio_frames, config.audio_in_channels),
        "encoder_hidden_states": s.empty(s.batch, s.text_tokens, video_width),
        "audio_encoder_hidden_states": s.empty(s.batch, s.text_tokens, audio_width),
        "timestep": s.empty(s.batch, tokens, dtype=torch.float32),
        "audio_timestep": s.empty(s.batch, dtype=torch.float32),
        "sigma": s.empty(s.batch, dtype=torch.float32),
        "num_frames": s.frames,
        "height": s.rows,
        "width": s.cols,
        "audio_num_frames": audio_frames,
    }


_DENOISE: Mapping[str, Callable[[Any, Shape], Inputs]] = {
    "WanTransformer3DModel": _wan,
    "WanVACETransformer3DModel": _wan_vace,
    "FluxTransformer2DModel": _flux,
    "HiDreamImageTransformer2DModel": _hidream,
    "LTX2VideoTransformer3DModel": _ltx,
}


def _route_evenly(module: Any) -> None:
    """Which expert a token goes to is in its numbers, and `meta` has none: each expert gets an equal share."""
    for part in module.modules():
        if type(part).__name__ == "MOEFeedForwardSwiGLU":
            part.moe_infer = lambda x, *_, part=part: _even_experts(part, x)
    module.unpatchify = lambda x, *_: x  # reads each picture's size from a tensor


def _even_experts(part: Any, x: torch.Tensor) -> torch.Tensor:
    share = -(-x.shape[0] * part.num_activated_experts // len(part.experts))
    gathered = x.new_empty(share, x.shape[1])
    for expert in part.experts:
        expert(gathered)
    return torch.zeros_like(x)
