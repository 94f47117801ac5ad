"""The denoising stage over ranks that compute nothing: the loop, policy, leases and events are the real ones."""

from __future__ import annotations

import time
from pathlib import Path

from raydiance.models import registry
from raydiance.serve.config import DenoiserConfig, ModelConfig
from raydiance.serve.engine.fleet import Fleet
from raydiance.serve.parallel_config import ParallelConfig
from raydiance.serve.scheduling_config import SchedulingConfig
from raydiance.serve.stages.denoiser import Denoiser
from raydiance.serve.stages.simulated.costs import Simulated
from raydiance.serve.stages.simulated.fleet import SimulatedFleet


class SimulatedDenoiser(Denoiser):
    """Serve deployment."""

    def __init__(
        self,
        model: ModelConfig,
        config: DenoiserConfig,
        device: str,
        parallel: ParallelConfig,
        scheduling: SchedulingConfig,
        simulated: Simulated,
    ) -> None:
        self._simulated = simulated
        super().__init__(model, config, device, parallel, scheduling)

    def _open(self, folder: Path, model: ModelConfig, parallel: ParallelConfig, device: str) -> Fleet:  # noqa: ARG002
        time.sleep(self._simulated.startup_s / self._simulated.speed)
        return SimulatedFleet(registry.card(folder, model.id), self._simulated, parallel.gpus)
