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
from raydiance.models.inputs import Inputs
from raydiance.models.spec import Spec

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from raydiance.models.solver import Solver
    from raydiance.models.tokens import Forward, Tokens

Stage = Literal["encode", "denoise", "decode"]
Tensors = Mapping[str, "torch.Tensor"]
# attention handed in from outside: q, k, v of [B, L, H, D] -> [B, L, H, D]
Attention = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor"], "torch.Tensor"]


@dataclass(frozen=True, slots=True)
class Audio:
    """Sound. `samples`: float32 in [-1, 1], [channels, N]."""

    samples: NDArray[np.float32]
    sample_rate: int


@dataclass(frozen=True, slots=True)
class Row:
    """One trajectory's part of a batched forward.

    Args:
        spec: the frozen request.
        latents: as made by `Family.initial_latents`, fp32.
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
    """Built by `raydiance.models.registry.load`; only the methods of its stage may be called.

    Latents have whatever shape the family gives them, without a batch axis (Wan: [C, T, H, W]); to the engine they are
    one tensor on which a solver's step is elementwise. The model's output has the same shape and is a velocity:
    x0 = latents - sigma * output.
    """

    card: ModelCard
    device: torch.device
    tokens: Tokens | None = None

    # -- any stage, pure
    def conditioning(
        self, spec: Spec, prompt: Tensors, negative: Tensors | None = None, inputs: Tensors | None = None
    ) -> Tensors:
        """What `encode_prompts` and `encode_inputs` gave, merged into what a `Row` takes: the negative prompt's tensors
        have `negative_` before their names.

        Raises ValueError where the spec needs a part (see `ModelCard.uses_negative`) that is not given.
        """
        merged = dict(prompt)
        if self.card.uses_negative(spec):
            if negative is None:
                scales = ", ".join(f"{n}={self.card.value(spec, n)}" for n in self.card.cfg_parameters)
                raise ValueError(f"{scales} needs the negative prompt's tensors")
            merged |= {f"negative_{name}": tensor for name, tensor in negative.items()}
        if accepts := self.card.accepts(spec.task):
            if inputs is None:
                roles = " or ".join(f"'{a.role}'" for a in accepts)
                raise ValueError(f"{spec.task} needs what encode_inputs makes of its inputs of role {roles}")
            merged |= inputs
        return merged

    # -- stage "encode"
    def encode_prompts(self, texts: Sequence[str]) -> list[Tensors]:
        """One mapping per text, without a batch axis. Equal texts give equal tensors whatever the batch."""
        ...

    # -- stage "decode" (it holds the VAE)
    def encode_inputs(self, spec: Spec, inputs: Inputs) -> Tensors:
        """Pictures, video and mask -> conditioning, without a batch axis. Called for tasks that accept any.

        Raises ValueError for roles that the task does not take.
        """
        ...

    def decode(self, latents: torch.Tensor, spec: Spec) -> Iterator[NDArray[np.uint8]]:
        """What `finish` gave -> chunks of frames, uint8 [t, H, W, 3], in order."""
        ...

    def decode_audio(self, latents: torch.Tensor, spec: Spec) -> Audio | None:  # noqa: ARG002 - most have none
        """The sound of what `finish` gave; None where `spec.audio` is off."""
        return None

    # -- stage "denoise"
    def new_solver(self, spec: Spec) -> Solver:
        """The solver with this request's schedule set."""
        ...

    def initial_latents(
        self, spec: Spec, conditioning: Tensors, solver: Solver, generator: torch.Generator
    ) -> torch.Tensor:
        """fp32, at the noise level of `spec.first_step`; diffusers' numbers for the spec's seed."""
        ...

    def num_tokens(self, spec: Spec, conditioning: Tensors) -> int:  # noqa: ARG002 - some count it
        """Length of the transformer's sequence, reference pictures included."""
        return self.card.num_tokens(spec.height, spec.width, spec.num_frames)

    def batch_key(self, spec: Spec, conditioning: Tensors) -> tuple[object, ...]:
        """Trajectories with equal keys can share a forward, at whatever timesteps they are."""
        ...

    def predict(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        """One guided velocity per row, fp32, like its latents. Rows share their batch key."""
        ...

    def finish(self, spec: Spec, conditioning: Tensors, latents: torch.Tensor) -> torch.Tensor:
        """What diffusers does to the latents between the last step and the VAE."""
        ...

    def set_tokens(self, tokens: Tokens | None) -> None:
        """Hands all tokens of every block to what is outside; None goes back to diffusers' own attention."""
        ...

    def set_attention(self, attention: Attention | None) -> None:
        """Use this attention in every block, on the whole sequence; None goes back to diffusers' own."""
        from raydiance.models.tokens import Whole

        self.set_tokens(None if attention is None else Whole(attention))

    def run(self, forwards: Sequence[Forward]) -> list[torch.Tensor]:
        """What a step's independent forwards return: one after the other, unless what is outside does it otherwise."""
        if self.tokens is None:
            return [forward.call() for forward in forwards]
        return self.tokens.run(forwards)
