"""What the start of a replica takes inside its process: for Prometheus, and its log.

From outside, with all that comes before the process, it is measured by the autoscaling.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from ray.util import metrics

log = logging.getLogger("ray.serve")


class StartUp:
    """Made first in a stage's constructor; told when it can work."""

    def __init__(self, stage: str, model_id: str) -> None:
        self._stage, self._model_id = stage, model_id
        self._began = time.monotonic()
        self._process_s = process_age_s()

    def done(self) -> None:
        seconds = {"weights": time.monotonic() - self._began}
        if self._process_s is not None:
            seconds["process"] = self._process_s
        gauge = metrics.Gauge(
            "raydiance_replica_start_seconds",
            "process: until the constructor of its stage; weights: until it can work.",
            tag_keys=("stage", "model", "phase"),
        )
        for phase, value in seconds.items():
            gauge.set(value, {"stage": self._stage, "model": self._model_id, "phase": phase})
        shown = ", ".join(f"{phase} {value:.1f} s" for phase, value in seconds.items())
        log.info("%s of '%s' has started: %s", self._stage, self._model_id, shown)


def process_age_s() -> float | None:
    """Since this process was begun, where the system tells (Linux); Ray may have kept it ready for a while."""
    if not Path("/proc/self/stat").exists():
        return None
    fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    began_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return float(Path("/proc/uptime").read_text().split()[0]) - began_s
