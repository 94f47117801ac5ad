"""What a HiDream-I1 checkpoint's JSON files say, and the card that follows from them. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raydiance.models.autoencoder_config import read_autoencoder
from raydiance.models.card import Defaults, ModelCard
from raydiance.models.own import own_defaults, own_length, read_own
from raydiance.models.resolve import CheckpointError, read_json

ELSEWHERE = ("text_encoder_4", "tokenizer_4")
"""Components that the published repositories leave to Llama's own."""
MAX_SEQUENCE_LENGTH = 128  # diffusers' default, on which the models were trained
_DISTILLED = ("FlowMatchLCMScheduler", "FlashFlowMatchEulerDiscreteScheduler")
_FULL = Defaults(height=1024, width=1024, num_frames=1, fps=1, num_inference_steps=50, guidance_scale=5.0)
_DEV = replace(_FULL, num_inference_steps=28, guidance_scale=0.0)
_FAST = replace(_FULL, num_inference_steps=16, guidance_scale=0.0)
_DEV_SHIFT = 6.0
"""Of Dev's scheduler; Fast's is 3. https://github.com/HiDream-ai/HiDream-I1/blob/main/inference.py"""


@dataclass(frozen=True, slots=True)
class HiDreamConfig:
    """Args:
    latent_channels: of the VAE and the transformer.
    spatial_factor: pixels a latent, along height and width.
    max_resolution: latents along either side of a square; sizes of another shape have about its area.
    num_heads: of the transformer.
    max_sequence_length: tokens that a text is padded or cut to, by each of the four encoders.
    """

    latent_channels: int
    spatial_factor: int
    max_resolution: int
    num_heads: int
    max_sequence_length: int
    defaults: Defaults

    @classmethod
    def read(cls, folder: Path) -> HiDreamConfig:
        """Raises CheckpointError for a variant of HiDream that is not served."""
        transformer = read_json(folder, "transformer/config.json")
        scheduler = read_json(folder, "scheduler/scheduler_config.json")
        own = read_own(folder)
        channels, factor = read_autoencoder(folder)
        _refuse_transformer(folder / "transformer/config.json", transformer, channels)
        side = transformer.get("max_resolution", (128, 128))[0]
        base = replace(_variant(scheduler), height=side * factor, width=side * factor)
        return cls(
            latent_channels=channels,
            spatial_factor=factor,
            max_resolution=side,
            num_heads=transformer.get("num_attention_heads", 20),
            max_sequence_length=own_length(folder, own, MAX_SEQUENCE_LENGTH),
            defaults=own_defaults(folder, own, base),
        )

    @property
    def max_tokens(self) -> int:
        """Patches that the transformer pads a picture to whose sides differ."""
        return (self.max_resolution // 2) ** 2

    def card(self, model_id: str) -> ModelCard:
        multiple = 2 * self.spatial_factor
        card = ModelCard(
            id=model_id,
            family="hidream",
            tasks=("text-to-image", "image-to-image"),
            defaults=self.defaults,
            size_multiple=multiple,
            frame_stride=1,
            spatial_factor=self.spatial_factor,
            temporal_factor=1,
            patch=(1, 2, 2),
            num_heads=self.num_heads,
            max_frames=1,
            max_text_tokens=3 * self.max_sequence_length,  # T5's, Llama's last layer and the block's own layer
            target_pixels=(self.max_resolution * self.spatial_factor) ** 2,
        )
        return replace(card, max_side=card.max_side // multiple * multiple)


def read_card(folder: Path, model_id: str) -> ModelCard:
    """The card of a HiDream folder; raises CheckpointError."""
    return HiDreamConfig.read(folder).card(model_id)


def check_elsewhere(folder: Path, components: Mapping[str, str]) -> None:
    """Raises CheckpointError where the Llama encoder is neither in the folder nor said to be elsewhere."""
    missing = [name for name in ELSEWHERE if name not in components and not (folder / name).is_dir()]
    if missing:
        raise CheckpointError(
            f"{folder} has no {' and no '.join(missing)}: set components.text_encoder_4 and components.tokenizer_4 to "
            "the folder or hub id of the Llama that it was trained with (Llama-3.1-8B-Instruct)"
        )


def _variant(scheduler: dict[str, Any]) -> Defaults:
    """Full, Dev or Fast: their folders differ in nothing but the scheduler and the weights."""
    if scheduler.get("_class_name") not in _DISTILLED:
        return _FULL
    return _DEV if scheduler.get("shift") == _DEV_SHIFT else _FAST


def _refuse_transformer(file: Path, transformer: dict[str, Any], latent_channels: Any) -> None:
    kind, channels = transformer.get("_class_name"), transformer.get("in_channels", 64)
    if kind != "HiDreamImageTransformer2DModel":
        raise CheckpointError(f"{file} is of a {kind}; only HiDreamImageTransformer2DModel is supported")
    if transformer.get("patch_size") != 2:
        raise CheckpointError(f"{file}: patch_size={transformer.get('patch_size')!r} is not supported; it must be 2")
    if channels != latent_channels or transformer.get("out_channels") not in (None, channels):
        raise CheckpointError(
            f"{file}: in_channels={channels} and out_channels={transformer.get('out_channels')} must be the VAE's "
            f"latent_channels={latent_channels}"
        )
    sides = transformer.get("max_resolution", (128, 128))
    if len(sides) != 2 or sides[0] != sides[1] or type(sides[0]) is not int or sides[0] < 2 or sides[0] % 2:
        raise CheckpointError(
            f"{file}: max_resolution={sides!r} must be an even number, twice; editing models (HiDream-E1) have others "
            "and are not supported"
        )
