"""How one denoiser replica spans several GPUs: the section `parallel` of the configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from raydiance.parallel.mesh import is_power_of_two, powers_of_two
from raydiance.serve.section import Section


def _as_number(value: object) -> object:
    """Options of the command line are strings."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


Auto = Literal["auto"]
Branches = Annotated[Literal["auto", 1, 2], BeforeValidator(_as_number)]
ScheduleName = Literal["synchronous", "projections", "head_groups", "lanes", "halves", "quarters"]


class ParallelConfig(Section):
    """`gpus` of one replica. What is `auto` is chosen at every step, by what was measured."""

    gpus: int = Field(1, ge=1, le=64, description="ranks of one denoiser replica: a power of two")
    nodes: int = Field(1, ge=1, description="over how many nodes they are spread; Ulysses stays inside a node")
    max_ulysses: int | None = Field(None, ge=1, description="at most; null: as many as the model has heads")
    ring: Auto | int = Field("auto", description="the ring degree, or auto")
    cfg: Branches = Field("auto", description="2: guidance branches on ranks of their own; 1: never; auto")
    schedule: Auto | ScheduleName = Field("auto", description="how exchanges are hidden, or auto")
    device: Literal["auto", "cuda", "cpu"] = Field("auto", description="of the ranks; auto is cuda")
    num_cpus: float = Field(0.1, ge=0, description="of each rank, for placing it")
    step_deadline_s: float = Field(120, gt=0, description="a rank that takes longer for a step hangs: it is replaced")
    start_deadline_s: float = Field(1800, gt=0, description="for loading the weights on all ranks")
    calibration_s: float = Field(30, ge=0, description="the longest that costs are measured for at the first request")

    @model_validator(mode="after")
    def _possible(self) -> ParallelConfig:
        for name in ("gpus", "nodes", "max_ulysses", "ring"):
            value = getattr(self, name)
            if isinstance(value, int) and not is_power_of_two(value):
                raise ValueError(f"{name}={value} must be a power of two: {', '.join(map(str, powers_of_two(64)))}")
        if self.nodes > self.gpus:
            raise ValueError(f"nodes={self.nodes} is more than gpus={self.gpus}")
        if self.gpus == 1:
            asked = [name for name in ("max_ulysses", "ring", "cfg", "schedule") if getattr(self, name) not in _UNASKED]
            if asked:
                raise ValueError(f"{asked[0]}={getattr(self, asked[0])} needs gpus of 2 or more, not gpus=1")
        return self


_UNASKED = ("auto", None, 1, "synchronous")
