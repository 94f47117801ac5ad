"""How LTX-2 combines its forwards: deltas of x0, for video and sound apart.

Source: diffusers' `LTX2Pipeline.__call__`, whose arithmetic this repeats in its order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from diffusers.pipelines.ltx2.pipeline_ltx2 import rescale_noise_cfg

from raydiance.models.spec import Spec

Pair = tuple[torch.Tensor, torch.Tensor]
"""Of the video [S, C] and of the sound [L, A]."""


@dataclass(frozen=True, slots=True)
class Scales:
    """Each of video and sound. `guidance` and `modality` do nothing at 1, `perturbation` and `rescale` at 0.

    0 of the sound is 0, where diffusers' call takes that of the video instead.
    """

    guidance: tuple[float, float]
    perturbation: tuple[float, float]
    modality: tuple[float, float]
    rescale: tuple[float, float]

    @classmethod
    def of(cls, spec: Spec) -> Scales:
        """Parameters that the checkpoint does not have leave everything as it is."""

        def pair(name: str, default: float) -> tuple[float, float]:
            return spec.extra.get(name, default), spec.extra.get(f"audio_{name}", default)

        return cls(
            (spec.guidance_scale, spec.extra.get("audio_guidance_scale", 1.0)),
            pair("stg_scale", 0.0),
            pair("modality_scale", 1.0),
            pair("guidance_rescale", 0.0),
        )

    @property
    def perturbs(self) -> bool:
        return max(self.perturbation) > 0

    @property
    def isolates(self) -> bool:
        return max(self.modality) > 1


@dataclass(slots=True)
class Prediction:
    """Velocities of one row's forwards.

    Args:
        conditional: with its prompt.
        unconditional: with its negative prompt.
        perturbed: with some self-attention skipped.
        isolated: without attention between video and sound.
    """

    conditional: Pair
    unconditional: Pair | None = None
    perturbed: Pair | None = None
    isolated: Pair | None = None


def guide(prediction: Prediction, latents: Pair, sigma: torch.Tensor, scales: Scales) -> Pair:
    """The guided velocities of video and sound."""
    video, sound = (_guide(prediction, latents[i], sigma, scales, i) for i in range(2))
    return video, sound


def _guide(prediction: Prediction, latents: torch.Tensor, sigma: torch.Tensor, scales: Scales, i: int) -> torch.Tensor:
    def x0(pair: Pair) -> torch.Tensor:
        return latents - pair[i] * sigma

    base = x0(prediction.conditional)
    guided = base
    for other, weight in (
        (prediction.unconditional, scales.guidance[i] - 1),
        (prediction.perturbed, scales.perturbation[i]),
        (prediction.isolated, scales.modality[i] - 1),
    ):
        if other is not None:
            guided = guided + weight * (base - x0(other))
    if scales.rescale[i] > 0:
        guided = rescale_noise_cfg(guided[None], base[None], guidance_rescale=scales.rescale[i])[0]
    return (latents - guided) / sigma
