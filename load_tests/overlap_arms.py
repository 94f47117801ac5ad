"""What an arm of the overlap benchmark is, and where those are found that take part.

    def setup(setting: Setting) -> Step: …         # on every rank, once
    register(Arm("ours overlapped", "sequence", setup, wire_bytes=sequence_bytes))

A module that registers arms is named in `MODULES`, in the order in which the table shows them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from overlap_models import Inputs, Row
from overlap_world import SHARED

MODULES = ("overlap_floors", "overlap_peers", "overlap_layouts", "overlap_ours")

Step = Callable[[Sequence[Inputs]], Sequence[torch.Tensor | None]]
"""The inputs of each of the row's forwards → their whole outputs, in this order; other inputs at every call. None where
another rank has the output.

An arm whose `role` is not "step" returns nothing.
"""


@dataclass(frozen=True)
class Setting:
    """What an arm is set up in; the process group of all ranks is `torch.distributed`'s default one.

    Args:
    rate: of the link, now; arms that choose by it say `per_rate`.
    """

    rank: int
    world: int
    row: Row
    rate: str
    weights: dict[str, torch.Tensor] = field(repr=False)

    def model(self) -> Any:
        """A transformer of its own, to be hooked and changed at will; its weights are shared and must not be."""
        model = self.row.model()
        model.load_state_dict(self.weights, assign=True)
        return model.requires_grad_(False)


@dataclass(frozen=True)
class Arm:
    """Args:
    layout: what is split over the ranks: "sequence", "cfg", "request", or these joined by " x ".
    role: "compute" and "communication" are what a layout cannot do without, each alone: they make its floor.
    takes: for which row, at how many ranks, it can run.
    works: how many times the row's work one step of this many ranks does.
    wire_bytes: what each rank sends in a step, if it is to be compared with the counters; of this many ranks.
    is_ours: whether it is ours or a peer's.
    per_rate: whether it is set up again for every rate.
    process: arms of one name share a process on each rank; what changes others' classes has one of its own.
    """

    name: str
    layout: str
    setup: Callable[[Setting], Step]
    role: Literal["step", "compute", "communication"] = "step"
    takes: Callable[[Row, int], bool] = lambda row, world: True  # noqa: ARG005
    works: Callable[[int], int] = lambda world: 1  # noqa: ARG005
    wire_bytes: Callable[[Row, int], int] | None = None
    is_ours: bool = False
    per_rate: bool = False
    process: str = SHARED

    def describe(self, row: Row, world: int) -> dict[str, Any]:
        """What the table needs of it."""
        return {
            "name": self.name,
            "layout": self.layout,
            "role": self.role,
            "works": self.works(world),
            "wire_bytes": None if self.wire_bytes is None else self.wire_bytes(row, world),
            "is_ours": self.is_ours,
            "process": self.process,
        }


_arms: dict[str, Arm] = {}


def register(arm: Arm) -> None:
    """Raises ValueError for a name that is taken."""
    if arm.name in _arms:
        raise ValueError(f"there are two arms {arm.name!r}")
    _arms[arm.name] = arm


def all_arms() -> dict[str, Arm]:
    for module in MODULES:
        importlib.import_module(module)
    return dict(_arms)


def sequence_bytes(row: Row, world: int) -> int:
    return row.sequence_bytes(world)


def nothing(_row: Row, _world: int) -> int:
    return 0


def output_of(model: Any, inputs: Inputs) -> torch.Tensor:
    output: torch.Tensor = model(**inputs, return_dict=False)[0]
    return output
