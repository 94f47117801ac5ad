"""What goes over the process boundaries between the dispatcher and the stages. Small, frozen, typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ray import ObjectRef

from raydiance.models.inputs import Role
from raydiance.models.spec import Spec
from raydiance.serve.engine.terms import NO_TERMS, Terms
from raydiance.serve.storage.job import Artifact


@dataclass(frozen=True, slots=True)
class Work:
    """One sample to denoise.

    Args:
        id: unique in the cluster while it runs.
        preview_steps: after which steps (1-based) the x0 estimate is wanted.
        checkpoint: the packed mutable half to go on from; None starts anew.
        step: of the checkpoint.
        lease_s: seconds of steps after which the state is handed back; None: never.
    """

    id: str
    spec: Spec
    preview_steps: tuple[int, ...] = ()
    checkpoint: bytes | None = None
    step: int = 0
    terms: Terms = NO_TERMS
    lease_s: float | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """A picture, video or mask that came with a job. `key`: its file in the artifact store."""

    role: Role
    key: str


@dataclass(frozen=True, slots=True)
class Encoded:
    """`embeddings`: a list of conditioning mappings, one per text, by reference."""

    embeddings: ObjectRef[Any]
    seconds: float


@dataclass(frozen=True, slots=True)
class Stepped:
    """Progress; coalesced, so not every step is told."""

    step: int
    num_steps: int


@dataclass(frozen=True, slots=True)
class Previewed:
    """`latents`: the x0 estimate, by reference."""

    preview_index: int
    latents: ObjectRef[Any]


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """`data`: the packed mutable half, by value, so that it outlives its replica."""

    step: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Spent:
    """What a sample has had of a replica in one lease.

    Args:
        seconds: from joining the loop to the last step.
        busy_s: its share of its batches' steps.
        gpu_seconds: that, times their ranks.
        decisions: how often it was stepped, or waited while others were, by reason.
    """

    seconds: float = 0.0
    busy_s: float = 0.0
    gpu_seconds: float = 0.0
    decisions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Leased:
    """The end of a lease: the state as a checkpoint has it. The replica keeps it for a while, in case it comes back."""

    step: int
    data: bytes
    spent: Spent


@dataclass(frozen=True, slots=True)
class Denoised:
    """The end. `latents` by reference."""

    latents: ObjectRef[Any]
    spent: Spent


@dataclass(frozen=True, slots=True)
class Decoded:
    """The file of one sample, stored; `timings` in seconds."""

    artifact: Artifact
    timings: dict[str, float]


StageEvent = Stepped | Previewed | Checkpointed | Leased | Denoised


def preview_steps(num_steps: int, first_step: int, count: int) -> tuple[int, ...]:
    """`count` steps spread evenly over what is run, the last step never among them (it is the result itself)."""
    run = num_steps - first_step
    steps = {first_step + max(1, round(run * (i + 1) / (count + 1))) for i in range(count)}
    return tuple(sorted(s for s in steps if s < num_steps))
