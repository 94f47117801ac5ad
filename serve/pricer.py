"""What requests of one model take, and when each should be done. No torch."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raydiance.models.card import ModelCard
from raydiance.models.spec import Spec
from raydiance.models.tier import Tier
from raydiance.serve.engine import cost_model
from raydiance.serve.engine.cost_model import PARTS, CostModel
from raydiance.serve.engine.cost_residuals import LAST
from raydiance.serve.engine.price import Price, Pricing
from raydiance.serve.engine.ways import Shape
from raydiance.serve.request import GenerationRequest
from raydiance.serve.scheduling_config import SchedulingConfig


@dataclass(frozen=True, slots=True)
class Target:
    """Times in Unix seconds.

    Args:
        slo: when it should be done; inf where nothing was asked for.
        deadline: when nobody wants it any longer; inf without one.
    """

    tier: Tier
    slo: float
    deadline: float

    @property
    def due(self) -> float:
        return min(self.slo, self.deadline)


def target(request: GenerationRequest, created_at: float, alone_s: float, config: SchedulingConfig) -> Target:
    """Pure. Args: alone_s: what it takes alone."""
    tier = request.service_tier or "standard"
    deadline = math.inf if request.deadline_s is None else created_at + request.deadline_s
    if request.slo_s is not None:
        return Target(tier, created_at + request.slo_s, deadline)
    if tier == "batch":
        return Target(tier, math.inf, deadline)
    of_tier = config.interactive if tier == "interactive" else config.standard
    return Target(tier, created_at + max(of_tier.slo * alone_s, of_tier.at_least_s), deadline)


class Pricer:
    """Args:
    gpus: of a replica.

    Attributes:
        overhead_s: of a job, beside its stages: the table, calls, events. The least of the last jobs, since what they
            wait for a turn is in it too.
    """

    def __init__(self, card: ModelCard, model: CostModel, gpus: int = 1) -> None:
        known = {part: dict(terms) for part, terms in model.coefficients.items()}
        model = CostModel({part: known.get(part, {}) for part in PARTS if part != "tokens"}, model.inflation)
        self._card = card
        self._gpus = gpus
        self._alone = Pricing(model)
        self.shared = Pricing(model)
        self.overhead_s = 0.0
        self._overheads: deque[float] = deque(maxlen=LAST)

    def alone(self, specs: Sequence[Spec]) -> list[Price]:
        """Of each sample, on an idle replica: what its latency is compared with."""
        return [self._alone.price(spec, self._card, degree=self._gpus) for spec in specs]

    def denoise_s(self, spec: Spec) -> float:
        """Seconds of a replica that a sample takes, as samples did lately: those that share a batch take less."""
        return self.shared.price(spec, self._card, degree=self._gpus).denoise_s

    def gpu_seconds(self, spec: Spec) -> float:
        return self.shared.price(spec, self._card, degree=self._gpus).gpu_seconds

    def observe(self, spec: Spec, busy_s: float, timings: Mapping[str, float]) -> None:
        """A sample that is done. Args: busy_s: its share of its steps; timings: of a `Walk`."""
        branches = 2 if self._card.uses_negative(spec) else 1
        shape = Shape(self._card.num_tokens(spec.height, spec.width, spec.num_frames), 1, branches)
        num_steps = spec.num_inference_steps - spec.first_step
        if busy_s > 0:
            self.shared.observe(shape, self._gpus, busy_s / num_steps)
        if "decode_s" in timings:
            work = cost_model.decode_work(spec, self._card)
            self.shared.observe_part("decode", work, timings["decode_s"] + timings.get("decode_audio_s", 0.0))

    def observe_job(self, timings: Mapping[str, float]) -> None:
        """Once a job, when it is done. Args: timings: seconds of its stages, and `total_s` of all of it."""
        stages_s = math.fsum(seconds for name, seconds in timings.items() if name != "total_s")
        self._overheads.append(max(timings["total_s"] - stages_s, 0.0))
        self.overhead_s = min(self._overheads)

    def error(self) -> dict[str, Any]:
        """How far prices were from what was observed, lately."""
        stats = self.shared.error_stats()
        return {"mean": stats.mean, "p95": stats.p95, "count": stats.count}


@dataclass(frozen=True, slots=True)
class Quote:
    """What a request takes, and when it would be done.

    Args:
        latency_s: alone, of the slowest of its samples.
        gpu_seconds: of all samples.
        starts_in_s: when what is more urgent is done.
        finish: in Unix seconds.
        retry_after_s: after which it would be let in; 0 where it is.
    """

    target: Target
    latency_s: float
    gpu_seconds: float
    starts_in_s: float
    finish: float
    retry_after_s: float = 0.0

    @property
    def is_admitted(self) -> bool:
        return self.retry_after_s == 0

    def public(self, gpu_second_price: float) -> dict[str, Any]:
        """As clients see it. Args: gpu_second_price: in the operator's currency."""
        now = time.time()
        return {
            "object": "quote",
            "service_tier": self.target.tier,
            "latency_s": round(self.latency_s, 3),
            "gpu_seconds": round(self.gpu_seconds, 3),
            "cost": round(self.gpu_seconds * gpu_second_price, 6),
            "starts_in_s": round(self.starts_in_s, 3),
            "expected_finish": round(self.finish, 3),
            "slo_s": None if math.isinf(self.target.slo) else round(self.target.slo - now, 3),
            "would_be_admitted": self.is_admitted,
            "retry_after_s": round(self.retry_after_s, 3),
        }
