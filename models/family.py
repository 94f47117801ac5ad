"""What a model family gives the engine: one device, diffusers' components, no ranks, no Ray.

A family is built for one *stage* and loads only that stage's components. The engine owns the loop; the family owns
what differs between models: how text and images become conditioning, how big the latents are, what one forward takes,
how guidance combines its outputs, and how latents become frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from raydiance.models.card import ModelCard
from raydiance.models.spec import Spec

if TYPE_CHECKING:
    import numpy as np
    import torch
    from PIL.Image import Image

    from raydiance.models.solver import Solver

Stage = Literal["encode", "denoise", "decode"]
Tensors = Mapping[str, "torch.Tensor"]
# attention handed in from outside: q, k, v of [B, L, H, D] -> [B, L, H, D]
Attention = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor"], "torch.Tensor"]


@dataclass(frozen=True, slots=True)
class Row:
    """One trajectory's part of a batched forward.

    Args:
        spec: the frozen request.
        latents: [C, T, H, W], fp32.
        timestep: the scheduler's own number.
        step_index: of the whole schedule.
        conditioning: tensors without a batch axis, as made by `Family.conditioning`.
    """

    spec: Spec
    latents: torch.Tensor
    timestep: torch.Tensor
    step_index: int
    conditioning: Tensors


class Family(Protocol):
    """Built by `raydiance.models.registry.load`; only the methods of its stage may be called."""

    card: ModelCard
    device: torch.device

    # -- any stage, pure
    def conditioning(
        self, spec: Spec, prompt: Tensors, negative: Tensors | None = None, image: Tensors | None = None
    ) -> Tensors:
        """What `encode_prompts` and `encode_images` gave, merged into what a `Row` takes.

        Raises ValueError where the spec needs a part (see `ModelCard.uses_negative`) that is not given.
        """
        ...

    # -- stage "encode"
    def encode_prompts(self, texts: Sequence[str]) -> list[Tensors]:
        """One mapping per text, without a batch axis. Equal texts give equal tensors whatever the batch."""
        ...

    # -- stage "decode" (it holds the VAE)
    def encode_images(self, spec: Spec, images: Mapping[str, Image]) -> Tensors:
        """Reference images by role (`first_frame`, `init`) -> conditioning, without a batch axis."""
        ...

    def decode(self, latents: torch.Tensor) -> Iterator[np.ndarray]:
        """Latents [C, T, H, W] -> chunks of frames, uint8 [t, H, W, 3], in order."""
        ...

    # -- stage "denoise"
    def new_solver(self, spec: Spec) -> Solver:
        """The solver with this request's schedule set."""
        ...

    def initial_latents(
        self, spec: Spec, conditioning: Tensors, solver: Solver, generator: torch.Generator
    ) -> torch.Tensor:
        """[C, T, H, W], fp32, at the noise level of `spec.first_step`."""
        ...

    def batch_key(self, spec: Spec, conditioning: Tensors) -> tuple[object, ...]:
        """Trajectories with equal keys can share a forward, at whatever timesteps they are."""
        ...

    def predict(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        """One guided model output [C, T, H, W] per row, fp32. Rows share their batch key."""
        ...

    def finish(self, spec: Spec, conditioning: Tensors, latents: torch.Tensor) -> torch.Tensor:
        """What diffusers does to the latents between the last step and the VAE."""
        ...

    def set_attention(self, attention: Attention | None) -> None:
        """Use this attention in every block; None goes back to diffusers' own."""
        ...
