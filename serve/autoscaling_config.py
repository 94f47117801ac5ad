"""How many replicas stages have, where that is not fixed: the section `autoscaling` of the configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator, model_validator

from raydiance.serve.section import Section

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
StageName = Literal["text_encoder", "denoiser", "vae_decoder"]
STAGES: tuple[StageName, ...] = ("text_encoder", "denoiser", "vae_decoder")
Clock = Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")


class HoursConfig(Section):
    """Hours of the week with spare replicas; where `end` is not after `start`, it is on the next day."""

    days: list[Day] = Field(list(DAYS), min_length=1)
    start: str = Clock
    end: str = Clock
    spares: int = Field(ge=1)


class StageScaling(Section):
    """Of one stage. Without `max_replicas` it has its fixed `num_replicas`."""

    min_replicas: int = Field(1, ge=0)
    max_replicas: int | None = Field(None, ge=1, le=1024, description="null: not scaled")
    cost_per_replica_hour: float = Field(0.0, ge=0, description="in the operator's currency, with all its GPUs")
    start_s: float = Field(60.0, gt=0, description="until a replica serves, before that has been measured")
    spares: int = Field(0, ge=0, description="replicas kept above what is needed")
    spare_percent: float = Field(0.0, ge=0, le=100, description="the same, of what is needed")
    schedule: list[HoursConfig] = Field([], description="hours with more spares")

    @model_validator(mode="after")
    def _possible(self) -> StageScaling:
        most = self.max_replicas
        if most is None:
            asked = [name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default]
            if asked:
                raise ValueError(f"{asked[0]} needs max_replicas: without it the stage has its fixed num_replicas")
            return self
        if self.min_replicas > most:
            raise ValueError(f"min_replicas={self.min_replicas} is more than max_replicas={most}")
        if self.min_replicas == 0 and self.spares:
            raise ValueError(f"min_replicas=0 is never reached with spares={self.spares}: leave one out, or a schedule")
        for spares in (self.spares, *(hours.spares for hours in self.schedule)):
            if spares >= most:
                raise ValueError(f"spares={spares} leaves none of max_replicas={most} for work")
        return self

    @property
    def first(self) -> int:
        """Replicas at the start: one at least, for the warm-up generations."""
        return max(self.min_replicas, 1)


class AutoscalingConfig(Section):
    """Off where no stage has `max_replicas`."""

    text_encoder: StageScaling = StageScaling()
    denoiser: StageScaling = StageScaling()
    vae_decoder: StageScaling = StageScaling()
    max_spend_per_hour: float | None = Field(None, gt=0, description="of all stages that are scaled together")
    timezone: str = Field("UTC", description="of the hours of schedules")
    utilization: float = Field(1.0, gt=0, le=1, description="of replicas, by the work that is forecast")
    drain_s: float = Field(30.0, gt=0, description="in which new replicas are to do what is late all the same")
    batch_drain_s: float = Field(600.0, gt=0, description="the same of work without a deadline")
    window_s: float = Field(300.0, gt=0, description="over which arrivals are smoothed")
    hysteresis: float = Field(0.1, ge=0, lt=1)
    cooldown_s: float = Field(60.0, ge=0, description="fewer replicas have to be enough for so long")
    idle_s: float = Field(300.0, gt=0, description="without work, after which none are kept where min_replicas is 0")
    stale_s: float = Field(10.0, ge=2, description="signals that are older change nothing")

    @field_validator("timezone")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as e:
            raise ValueError("must be a name of the tz database, such as Europe/Berlin") from e
        return name

    @model_validator(mode="after")
    def _possible(self) -> AutoscalingConfig:
        for name in ("text_encoder", "vae_decoder"):
            if getattr(self, name).min_replicas == 0:
                raise ValueError(f"{name}.min_replicas=0: only the denoiser can be scaled to none")
        if self.drain_s > self.batch_drain_s:
            raise ValueError(f"drain_s={self.drain_s:g} is more than batch_drain_s={self.batch_drain_s:g}")
        cap = self.max_spend_per_hour
        if cap is None:
            return self
        scaled = [(name, self.of(name)) for name in STAGES if self.of(name).max_replicas is not None]
        if not any(stage.cost_per_replica_hour for _, stage in scaled):
            raise ValueError(f"max_spend_per_hour={cap:g} needs cost_per_replica_hour of a stage that is scaled")
        least = math.fsum(stage.first * stage.cost_per_replica_hour for _, stage in scaled)
        if least > cap:
            raise ValueError(f"max_spend_per_hour={cap:g} is less than {least:g}, which the fewest replicas cost")
        return self

    def check(self, num_replicas: Mapping[StageName, int], num_models: int) -> None:
        """Beside the rest of the configuration; raises ValueError."""
        for stage, fixed in num_replicas.items():
            if self.of(stage).max_replicas is not None and fixed != 1:
                raise ValueError(
                    f"{stage}.num_replicas={fixed}: autoscaling.{stage}.max_replicas scales it, leave it out"
                )
        least = num_models * self.denoiser.first * self.denoiser.cost_per_replica_hour
        if self.max_spend_per_hour is not None and least > self.max_spend_per_hour:
            cap = f"autoscaling.max_spend_per_hour={self.max_spend_per_hour:g}"
            raise ValueError(f"{cap} is less than {least:g}, which the fewest denoisers of {num_models} models cost")

    def of(self, stage: StageName) -> StageScaling:
        found: StageScaling = getattr(self, stage)
        return found

    @property
    def is_on(self) -> bool:
        return any(self.of(stage).max_replicas is not None for stage in STAGES)

    def paid(self, stage: StageName) -> int | None:
        """Replicas at most, by number and by cost; None where it is not scaled."""
        scaling = self.of(stage)
        most, cost = scaling.max_replicas, scaling.cost_per_replica_hour
        if most is None or self.max_spend_per_hour is None or cost == 0:
            return most
        return max(math.floor(min(most, self.max_spend_per_hour / cost)), scaling.min_replicas)
