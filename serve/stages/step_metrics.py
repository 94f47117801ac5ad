"""Which layouts and schedules steps are run in: for logs, `stats` and Prometheus."""

from __future__ import annotations

import logging

from ray.util import metrics

from raydiance.parallel.schedule import name_of
from raydiance.serve.engine.parts import Part
from raydiance.serve.engine.ways import Shape, Way

log = logging.getLogger("ray.serve")


class StepMetrics:
    """Which layouts and schedules steps were run in, for `stats`, logs and Prometheus.

    Attributes:
        counts: steps by way.
    """

    def __init__(self, model_id: str) -> None:
        self.counts: dict[str, int] = {}
        self._last: dict[Shape, Way] = {}
        tags = ("model", "cfg", "ring", "ulysses", "schedule")
        self._steps = metrics.Counter("raydiance_parallel_steps", "Steps, by layout and schedule.", tag_keys=tags)
        self._seconds = metrics.Counter("raydiance_parallel_step_seconds", "What they took.", tag_keys=tags)
        self._model_id = model_id

    def __call__(self, part: Part, seconds: float) -> None:
        way, layout = part.way, part.way.layout
        if self._last.get(part.shape) != way:
            self._last[part.shape] = way
            log.info("model '%s': a step of %d tokens runs as %s", self._model_id, part.shape.work, way)
        self.counts[str(way)] = self.counts.get(str(way), 0) + 1
        tags = {
            "model": self._model_id,
            "cfg": str(layout.cfg),
            "ring": str(layout.ring),
            "ulysses": str(layout.ulysses),
            "schedule": name_of(way.schedule),
        }
        self._steps.inc(1, tags)
        self._seconds.inc(max(seconds, 1e-9), tags)
