"""A denoising state as a value: everything that is needed to go on denoising, anywhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from raydiance.models.solver import SolverState
from raydiance.models.spec import Spec


@dataclass(frozen=True, eq=False)
class Fixed:
    """The half that never changes: sent once, found again by its content.

    Args:
        conditioning: as made by `Family.conditioning`; no batch axis.
    """

    spec: Spec
    conditioning: Mapping[str, torch.Tensor]

    @cached_property
    def conditioning_id(self) -> str:
        """sha256 of the conditioning's names, types, shapes and bytes: the samples of one request share it."""
        return content_hash(self.conditioning)

    @cached_property
    def id(self) -> str:
        """sha256 of the spec and the conditioning."""
        return content_hash(self.conditioning, json.dumps(self.spec.to_dict(), sort_keys=True))

    def to(self, device: torch.device) -> Fixed:
        if all(t.device == device for t in self.conditioning.values()):
            return self
        moved = replace(self, conditioning={k: t.to(device) for k, t in self.conditioning.items()})
        known = {k: v for k, v in vars(self).items() if k in ("conditioning_id", "id")}
        vars(moved).update(known)  # the content is the same, so it is not hashed again
        return moved


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One sample on its way from noise to data. No operation changes one; all return new ones.

    Args:
        step_index: the next step of the schedule, `num_steps` when done.
        latents: of the family's shape, fp32, at that step's noise level.
        solver: what the scheduler remembers of the steps before.
        generator_state: of the CPU's torch.Generator, uint8; stochastic solvers and `rewind` draw from it.
        denoised: the estimate of x0 of the last forward, like `latents`; None before the first.
    """

    fixed: Fixed
    step_index: int
    latents: torch.Tensor
    solver: SolverState
    generator_state: torch.Tensor
    denoised: torch.Tensor | None = None

    @property
    def spec(self) -> Spec:
        return self.fixed.spec

    @property
    def num_steps(self) -> int:
        """Of the whole schedule."""
        return self.spec.num_inference_steps

    @property
    def remaining(self) -> int:
        """Steps to go."""
        return self.num_steps - self.step_index

    @property
    def is_done(self) -> bool:
        return self.remaining == 0

    @property
    def progress(self) -> float:
        """In [0, 1], of the steps that this request runs."""
        first = min(self.spec.first_step, self.step_index)
        return (self.step_index - first) / (self.num_steps - first)

    def to(self, device: torch.device) -> Trajectory:
        """The same value on another device; the generator's state stays on the CPU."""
        return replace(
            self,
            fixed=self.fixed.to(device),
            latents=self.latents.to(device),
            solver=self.solver.to(device),
            denoised=None if self.denoised is None else self.denoised.to(device),
        )


def content_hash(tensors: Mapping[str, torch.Tensor], text: str = "") -> str:
    """sha256, as hex, of a text and of tensors: names, types, shapes and bytes, whatever their order and device."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
