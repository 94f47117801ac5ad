"""What the denoising loop tells ranks, and what they answer. Small, frozen, typed; latents are on the CPU. No torch."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raydiance.models.spec import Spec
from raydiance.parallel.mesh import Mesh
from raydiance.parallel.schedule import Schedule
from raydiance.serve.engine.terms import NO_TERMS, Terms

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Start:
    """A trajectory to hold.

    Args:
        embeddings: of the prompt and, with guidance, of the negative prompt.
        inputs: what the VAE stage made of pictures, video and mask.
        checkpoint: the packed mutable half to go on from; None starts anew.
        step: of the checkpoint.
    """

    id: str
    spec: Spec
    embeddings: list[Tensors]
    inputs: Tensors | None = None
    checkpoint: bytes | None = None
    step: int = 0
    terms: Terms = NO_TERMS


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a trajectory is, and what a plan needs to know of it.

    Args:
        key: those with equal keys can share a forward.
        num_tokens: of its sequence.
        num_branches: 2 where classifier-free guidance runs, else 1.
    """

    step_index: int
    num_steps: int
    key: Hashable
    num_tokens: int
    num_branches: int

    @property
    def is_done(self) -> bool:
        return self.step_index >= self.num_steps


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wanted of a trajectory after its next step; of its last step, the result always is.

    Args:
        pause: it stays where it is then, and is not stepped until somebody joins for it again.
    """

    preview: bool = False
    checkpoint: bool = False
    pause: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of a batch, or of two in lanes, on the ranks of a mesh.

    Args:
        batches: ids.
        keeps: whether the step counts; one that does not is made to be measured.
    """

    batches: tuple[tuple[str, ...], ...]
    mesh: Mesh
    schedule: Schedule
    wishes: Mapping[str, Wish] = field(default_factory=dict)
    keeps: bool = True


@dataclass(frozen=True, slots=True)
class Move:
    """A trajectory's state goes from a rank that has it to those that do not."""

    id: str
    sender: int
    receivers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one trajectory, after a step.

    Args:
        preview: the x0 estimate, as latents for the decoder.
        checkpoint: the packed mutable half.
        result: the latents for the decoder, when it is done.
        is_paused: as was wished.
        checkpoint_s: that the checkpoint took, in which nothing was stepped.
    """

    step_index: int
    preview: torch.Tensor | None = None
    checkpoint: bytes | None = None
    result: torch.Tensor | None = None
    is_paused: bool = False
    checkpoint_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """Of one turn, from its first rank.

    Args:
        seconds: that the step took, without what was wished for.
        num_forwards: that the rank ran, over `num_rows` trajectories.
    """

    outcomes: Mapping[str, Outcome]
    seconds: float
    num_forwards: int = 0
    num_rows: int = 0
