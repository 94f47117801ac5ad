"""LTX-2.3, its distilled kind and LTX-2.0: random weights of the real classes, video and sound."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from diffusers import (
    AutoencoderKLLTX2Audio,
    AutoencoderKLLTX2Video,
    FlowMatchEulerDiscreteScheduler,
    LTX2Pipeline,
    LTX2VideoTransformer3DModel,
)
from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors
from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder, LTX2VocoderWithBWE
from tests.families.kit import Case, Model, picture
from tests.families.words import vocabulary, word_tokenizer
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from raydiance.models.inputs import Inputs
from raydiance.models.spec import Spec

SPECIAL = ("<pad>", "<bos>", "<unk>")
MAX_SEQUENCE_LENGTH = 16
LAYERS = 2
SIGMAS = [1.0, 0.9, 0.7, 0.4]
Kind = Literal["full", "distilled", "2.0"]
TEXT_LAYERS, TEXT_WIDTH = 2, 16
DEFAULTS = {"height": 64, "width": 96, "num_frames": 9, "fps": 8, "num_inference_steps": 4, "guidance_scale": 3.0}
SCALES = {
    "audio_guidance_scale": 5.0,
    "stg_scale": 1.0,
    "audio_stg_scale": 0.5,
    "modality_scale": 2.0,
    "audio_modality_scale": 1.5,
    "guidance_rescale": 0.7,
    "audio_guidance_rescale": 0.5,
}
PLAIN = {name: 1.0 if "guidance_scale" in name or "modality" in name else 0.0 for name in SCALES}


def save_ltx(folder: Path, kind: Kind = "full", *, heads: int = 2) -> Path:
    """Writes the folder and returns it. Transformer: two blocks; every parameter random, or zeros would hide inputs.

    LTX-2.0 differs in what its blocks have, pads its text, conditions the VAE on a timestep and has a smaller vocoder.
    """
    old = kind == "2.0"
    torch.manual_seed(0)
    modules = {
        "text_encoder": _text_encoder(),
        "connectors": _connectors(heads, **(_OLD_CONNECTORS if old else {})),
        "transformer": _transformer(heads, **(_OLD_TRANSFORMER if old else {})),
        "vae": _vae(timestep_conditioning=old),
        "audio_vae": _audio_vae(),
        "vocoder": _old_vocoder() if old else _vocoder(),
    }
    for module in modules.values():
        _randomise(module)
    as_is = {"use_dynamic_shifting": False, "shift_terminal": None}  # so diffusers publishes distilled checkpoints
    shifted = {"use_dynamic_shifting": True, "shift_terminal": 0.1}
    scheduler = FlowMatchEulerDiscreteScheduler(
        base_shift=0.95, max_shift=2.05, base_image_seq_len=1024, **(as_is if kind == "distilled" else shifted)
    )
    LTX2Pipeline(
        tokenizer=word_tokenizer(SPECIAL, "<bos> $A", bos_token="<bos>", padding_side="left"),
        scheduler=scheduler,
        **modules,
    ).save_pretrained(folder)
    own: dict[str, Any] = {
        "max_sequence_length": MAX_SEQUENCE_LENGTH,
        "spatio_temporal_guidance_blocks": [1],
        "defaults": DEFAULTS,
    }
    (folder / "raydiance.json").write_text(json.dumps({**own, "sigmas": SIGMAS} if kind == "distilled" else own))
    return folder


def _randomise(module: torch.nn.Module) -> None:
    """Matrices keep the size of what goes through them; vectors are small, and none is zero."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, max(1, parameter.numel() // max(1, len(parameter))) ** -0.5)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)


def _text_encoder() -> Gemma3ForConditionalGeneration:
    text = {
        "vocab_size": len(vocabulary(SPECIAL)),
        "hidden_size": TEXT_WIDTH,
        "intermediate_size": 32,
        "num_hidden_layers": TEXT_LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "sliding_window": 8,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    vision = {
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "image_size": 16,
        "patch_size": 8,
    }
    indices = {"image_token_index": 2, "boi_token_index": 2, "eoi_token_index": 2, "mm_tokens_per_image": 4}
    return Gemma3ForConditionalGeneration(Gemma3Config(text_config=text, vision_config=vision, **indices))


_OLD_CONNECTORS: dict[str, Any] = {
    "video_connector_num_learnable_registers": None,
    "video_gated_attn": False,
    "audio_connector_attention_head_dim": 8,
    "audio_connector_num_learnable_registers": None,
    "audio_gated_attn": False,
    "rope_type": "interleaved",
    "per_modality_projections": False,
    "proj_bias": False,
}
_OLD_TRANSFORMER: dict[str, Any] = {
    "gated_attn": False,
    "cross_attn_mod": False,
    "audio_gated_attn": False,
    "audio_cross_attn_mod": False,
    "rope_type": "interleaved",
    "use_prompt_embeddings": True,
    "perturbed_attn": False,
}


def _connectors(heads: int, **changes: Any) -> LTX2TextConnectors:
    config: dict[str, Any] = {
        "caption_channels": TEXT_WIDTH,
        "text_proj_in_factor": TEXT_LAYERS + 1,
        "video_connector_num_attention_heads": heads,
        "video_connector_attention_head_dim": 8,
        "video_connector_num_layers": 1,
        "video_connector_num_learnable_registers": 8,
        "video_gated_attn": True,
        "audio_connector_num_attention_heads": heads,
        "audio_connector_attention_head_dim": 4,
        "audio_connector_num_layers": 1,
        "audio_connector_num_learnable_registers": 8,
        "audio_gated_attn": True,
        "connector_rope_base_seq_len": 32,
        "rope_type": "split",
        "per_modality_projections": True,
        "video_hidden_dim": 8 * heads,
        "audio_hidden_dim": 4 * heads,
        "proj_bias": True,
    }
    return LTX2TextConnectors(**{**config, **changes})


def _transformer(heads: int, **changes: Any) -> LTX2VideoTransformer3DModel:
    config: dict[str, Any] = {
        "in_channels": 4,
        "out_channels": 4,
        "num_attention_heads": heads,
        "attention_head_dim": 8,
        "cross_attention_dim": 8 * heads,
        "gated_attn": True,
        "cross_attn_mod": True,
        "audio_in_channels": 8,
        "audio_out_channels": 8,
        "audio_num_attention_heads": heads,
        "audio_attention_head_dim": 4,
        "audio_cross_attention_dim": 4 * heads,
        "audio_gated_attn": True,
        "audio_cross_attn_mod": True,
        "num_layers": LAYERS,
        "caption_channels": TEXT_WIDTH,
        "rope_type": "split",
        "use_prompt_embeddings": False,
        "perturbed_attn": True,
    }
    return LTX2VideoTransformer3DModel(**{**config, **changes})


def _vae(timestep_conditioning: bool) -> AutoencoderKLLTX2Video:
    return AutoencoderKLLTX2Video(
        latent_channels=4,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1),
        spatio_temporal_scaling=(True, True, True, True),
        decoder_spatio_temporal_scaling=(True, True, True),
        decoder_inject_noise=(False, False, False, False),
        downsample_type=("spatial", "temporal", "spatiotemporal", "spatiotemporal"),
        upsample_residual=(False, False, False),
        upsample_factor=(1, 1, 1),
        timestep_conditioning=timestep_conditioning,
        patch_size=4,
        spatial_compression_ratio=32,
        temporal_compression_ratio=8,
    )


def _audio_vae() -> AutoencoderKLLTX2Audio:
    return AutoencoderKLLTX2Audio(
        base_channels=8, ch_mult=(1, 1, 1), num_res_blocks=1, latent_channels=2, mel_bins=16, resolution=32
    )


def _vocoder() -> LTX2VocoderWithBWE:
    return LTX2VocoderWithBWE(
        in_channels=32,
        hidden_channels=64,
        upsample_kernel_sizes=[11, 4, 4, 4, 4, 4],
        upsample_factors=[5, 2, 2, 2, 2, 2],
        resnet_kernel_sizes=[3],
        resnet_dilations=[[1, 3]],
        bwe_in_channels=32,
        bwe_hidden_channels=32,
        bwe_upsample_kernel_sizes=[12, 11, 4, 4, 4],
        bwe_upsample_factors=[6, 5, 2, 2, 2],
        bwe_resnet_kernel_sizes=[3],
        bwe_resnet_dilations=[[1, 3]],
        num_mel_channels=16,
    )


def _old_vocoder() -> LTX2Vocoder:
    return LTX2Vocoder(
        in_channels=32,
        hidden_channels=32,
        upsample_kernel_sizes=[16, 15, 8, 4],
        upsample_factors=[8, 5, 2, 2],
        resnet_kernel_sizes=[3],
        resnet_dilations=[[1, 3]],
        output_sampling_rate=16000,
    )


def spec(task: str = "text-to-video", extra: Mapping[str, float] = SCALES, **values: Any) -> Spec:
    base = {"prompt": "a red circle moves left", "seed": 7, "audio": True, **DEFAULTS}
    base |= {"negative_prompt": "a black square"} if base["guidance_scale"] > 1 else {}
    return Spec(model="ltx", task=task, extra=extra, **{**base, **values})


def given(width: int = 96, height: int = 64) -> Inputs:
    return Inputs({"first_frame": [picture(width, height)]})


MODELS = (
    Model(
        "ltx",
        save_ltx,
        (
            Case("t2v", spec()),
            Case("t2v-plain", spec(extra=PLAIN, guidance_scale=1.0)),
            Case("i2v", spec("image-to-video"), given()),
        ),
    ),
    Model(
        "ltx-distilled",
        functools.partial(save_ltx, kind="distilled"),
        (Case("t2v", spec(extra={}, guidance_scale=1.0, negative_prompt="")),),
    ),
)
OLD = Model("ltx-2.0", functools.partial(save_ltx, kind="2.0"), ())
"""Of the same class of pipeline as LTX-2.3."""
THREE_HEADS = Model("ltx-3-heads", functools.partial(save_ltx, heads=3), ())
"""Those of the others can be dealt out over two ranks; here of video and sound they cannot."""
