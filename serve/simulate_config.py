"""Simulated accelerators: the section `simulate` of the configuration. For planning and tests only."""

from __future__ import annotations

from pydantic import Field

from raydiance.serve.gpus import GpuName
from raydiance.serve.section import Section


class SimulateConfig(Section):
    """With `gpu` set nothing is generated: steps take the time that they would take on that GPU, divided by `speed`."""

    gpu: GpuName | None = Field(None, description="whose steps are simulated; null: nothing is simulated")
    speed: float = Field(1.0, gt=0, description="times as fast as that GPU; deadlines and intervals stay as they are")
    startup_s: float = Field(30.0, ge=0, description="until a replica serves, at speed 1")
