"""How requests are scheduled: in the dispatcher, and at every step in the denoiser."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from raydiance.serve.section import Section

PolicyName = Literal["slack", "fifo", "edf", "sjf", "tetriserve"]


class TierConfig(Section):
    """When a request that gives no `slo_s` should be done: `slo` times what it takes alone, and `at_least_s`."""

    slo: float = Field(gt=1, description="times the isolated latency")
    at_least_s: float = Field(ge=0)


class SchedulingConfig(Section):
    """The tier `batch` has no target of its own: it gets what the others leave, or its turn after `patience_s`."""

    policy: PolicyName = "slack"
    interactive: TierConfig = TierConfig(slo=3.0, at_least_s=10.0)
    standard: TierConfig = TierConfig(slo=10.0, at_least_s=120.0)
    admission: bool = Field(True, description="answer 429 to what cannot be done in time, before any work")
    lead_s: float = Field(4.0, gt=0, description="seconds of work that a replica is given ahead")
    lease_s: float = Field(5.0, gt=0, description="seconds of steps after which a replica hands a state back")
    quantum_s: float = Field(0.25, ge=0, description="what runs is not displaced before")
    patience_s: float = Field(60.0, gt=0, description="what has waited for so long comes first")
    headroom: int = Field(0, ge=0, le=63, description="ranks of a replica that the tier batch leaves free")

    @model_validator(mode="after")
    def _ordered(self) -> SchedulingConfig:
        if self.quantum_s >= self.patience_s:
            raise ValueError(f"quantum_s={self.quantum_s:g} must be below patience_s={self.patience_s:g}")
        return self
