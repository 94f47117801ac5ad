"""How deployments are scaled: which policy of Serve's, with which rules, fed by the dispatchers of which models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ray.serve.config import AutoscalingConfig as ServeAutoscaling
from ray.serve.config import AutoscalingPolicy

from raydiance.serve.autoscaling_config import DAYS, STAGES, AutoscalingConfig, HoursConfig, StageName
from raydiance.serve.config import ModelConfig

POLICY = "raydiance.deploy.autoscaling:WorkPolicy"
COMMON = ("utilization", "drain_s", "batch_drain_s", "window_s", "hysteresis", "cooldown_s", "idle_s", "stale_s")


Owners = Mapping[str, ModelConfig]
"""By model, the one whose deployment does its work."""


class Elastic:
    """Args:
    encoders, denoisers, decoders: owners of each stage.
    """

    def __init__(self, config: AutoscalingConfig, encoders: Owners, denoisers: Owners, decoders: Owners) -> None:
        self._config = config
        self._owners = dict(zip(STAGES, (encoders, denoisers, decoders), strict=True))

    def options(self, cls: str, model_id: str) -> dict[str, Any]:
        """Of a deployment; none where it is not scaled. Args: cls: the name of its class."""
        stage = _stage_of(cls)
        scaling = self._config.of(stage)
        if scaling.max_replicas is None:
            return {}
        rules = {name: getattr(self._config, name) for name in (*COMMON, "timezone", "max_spend_per_hour")} | {
            "min_replicas": scaling.min_replicas,
            "max_replicas": scaling.max_replicas,
            "start_s": scaling.start_s,
            "cost_per_hour": scaling.cost_per_replica_hour,
            "spares": scaling.spares,
            "spare_percent": scaling.spare_percent,
            "schedule": [_hours(each) for each in scaling.schedule],
        }
        policy = {
            "stage": stage,
            "models": sorted(id for id, owner in self._owners[stage].items() if owner.id == model_id),
            "rules": rules,
            "reserved": self._least() - scaling.first * scaling.cost_per_replica_hour,
        }
        elastic = ServeAutoscaling(
            min_replicas=scaling.min_replicas,
            initial_replicas=scaling.first,
            max_replicas=scaling.max_replicas,
            upscale_delay_s=0,  # the policy decides when
            downscale_delay_s=0,
            policy=AutoscalingPolicy(policy_function=POLICY, policy_kwargs=policy),
        )
        return {"autoscaling_config": elastic}

    def _least(self) -> float:
        """What the fewest replicas of all deployments cost an hour."""
        costs = []
        for stage in STAGES:
            scaling = self._config.of(stage)
            if scaling.max_replicas is not None:
                num_deployments = len({owner.id for owner in self._owners[stage].values()})
                costs.append(num_deployments * scaling.first * scaling.cost_per_replica_hour)
        return math.fsum(costs)


def _stage_of(cls: str) -> StageName:
    if cls.endswith("TextEncoder"):
        return "text_encoder"
    return "vae_decoder" if cls.endswith("VAEDecoder") else "denoiser"


def _hours(hours: HoursConfig) -> dict[str, Any]:
    start, end = (int(at[:2]) * 60 + int(at[3:]) for at in (hours.start, hours.end))
    return {"days": [day for day in DAYS if day in hours.days], "start": start, "end": end, "spares": hours.spares}
