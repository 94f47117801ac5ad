"""What a FLUX.1 checkpoint's JSON files say, and the card that follows from them. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raydiance.models.autoencoder_config import read_autoencoder
from raydiance.models.card import Defaults, ModelCard, Parameter
from raydiance.models.own import own_defaults, own_length, read_own
from raydiance.models.resolve import CheckpointError, read_json
from raydiance.models.spec import Task

MAX_SEQUENCE_LENGTH = 512  # diffusers' pipelines refuse more
_GUIDED = Defaults(
    height=1024, width=1024, num_frames=1, fps=1, num_inference_steps=28, guidance_scale=3.5, strength=0.6
)
_DISTILLED = replace(_GUIDED, num_inference_steps=4, guidance_scale=0.0)


@dataclass(frozen=True, slots=True)
class FluxConfig:
    """Args:
    edits: it takes a reference picture into its sequence (Kontext).
    has_guidance: guidance is embedded like the timestep (dev, Kontext); schnell has none.
    latent_channels: of the VAE; a packed latent is 2x2 of them.
    spatial_factor: pixels a latent, along height and width.
    num_heads: of the transformer.
    max_sequence_length: tokens that a text is padded or cut to.
    """

    edits: bool
    has_guidance: bool
    latent_channels: int
    spatial_factor: int
    num_heads: int
    max_sequence_length: int
    defaults: Defaults

    @classmethod
    def read(cls, folder: Path) -> FluxConfig:
        """Raises CheckpointError for a variant of FLUX that is not served."""
        index = read_json(folder, "model_index.json")
        transformer = read_json(folder, "transformer/config.json")
        own = read_own(folder)
        channels, factor = read_autoencoder(folder)
        _refuse_transformer(folder / "transformer/config.json", transformer, channels)
        has_guidance = bool(transformer.get("guidance_embeds", False))
        return cls(
            edits=index.get("_class_name") == "FluxKontextPipeline",
            has_guidance=has_guidance,
            latent_channels=channels,
            spatial_factor=factor,
            num_heads=transformer.get("num_attention_heads", 24),
            max_sequence_length=own_length(folder, own, MAX_SEQUENCE_LENGTH),
            defaults=own_defaults(folder, own, _GUIDED if has_guidance else _DISTILLED),
        )

    def card(self, model_id: str) -> ModelCard:
        multiple = 2 * self.spatial_factor
        tasks: tuple[Task, ...] = ("image-edit", "text-to-image") if self.edits else ("text-to-image", "image-to-image")
        card = ModelCard(
            id=model_id,
            family="flux",
            tasks=tasks,
            defaults=self.defaults,
            size_multiple=multiple,
            frame_stride=1,
            spatial_factor=self.spatial_factor,
            temporal_factor=1,
            patch=(1, 2, 2),
            num_heads=self.num_heads,
            max_frames=1,
            parameters=(Parameter("true_cfg_scale", low=1.0, high=100.0, default=1.0),),
            cfg_parameters=("true_cfg_scale",),
            has_guidance=self.has_guidance,
            strength_tasks=() if self.edits else ("image-to-image",),
            strength_rounds_up=True,
            max_text_tokens=self.max_sequence_length,
        )
        return replace(card, max_side=card.max_side // multiple * multiple)


def read_card(folder: Path, model_id: str) -> ModelCard:
    """The card of a FLUX folder; raises CheckpointError."""
    return FluxConfig.read(folder).card(model_id)


def _refuse_transformer(file: Path, transformer: dict[str, Any], latent_channels: Any) -> None:
    kind, channels = transformer.get("_class_name"), transformer.get("in_channels", 64)
    if kind != "FluxTransformer2DModel":
        raise CheckpointError(f"{file} is of a {kind}; only FluxTransformer2DModel is supported")
    if transformer.get("patch_size", 1) != 1:
        raise CheckpointError(f"{file}: patch_size={transformer['patch_size']} is not supported; it must be 1")
    if type(latent_channels) is not int or channels != 4 * latent_channels:
        raise CheckpointError(
            f"{file}: in_channels={channels} is not 4 times the VAE's latent_channels={latent_channels}; pictures "
            "given as extra channels (FLUX.1 Fill, Canny, Depth) are not supported"
        )
    if transformer.get("out_channels") not in (None, channels):
        raise CheckpointError(f"{file}: out_channels={transformer['out_channels']} must be in_channels={channels}")
