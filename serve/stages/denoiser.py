"""The denoising stage: steps trajectories together and streams what happens to each. On one GPU, or on several."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from raydiance.models import registry, resolve
from raydiance.serve.config import DenoiserConfig, ModelConfig
from raydiance.serve.engine.fleet import Fleet, RanksLost
from raydiance.serve.engine.loop import DenoisingLoop
from raydiance.serve.engine.orders import Start
from raydiance.serve.engine.planner import Planner
from raydiance.serve.engine.policies.base import Rules
from raydiance.serve.engine.policies.registry import policy
from raydiance.serve.engine.ways import Costs
from raydiance.serve.errors import ConfigError, StateGone
from raydiance.serve.layout_check import limits_of
from raydiance.serve.parallel_config import ParallelConfig
from raydiance.serve.scheduling_config import SchedulingConfig
from raydiance.serve.stages.messages import Denoised, Leased, StageEvent, Work
from raydiance.serve.stages.reporter import Reporter
from raydiance.serve.stages.startup import StartUp
from raydiance.serve.stages.step_metrics import StepMetrics

if TYPE_CHECKING:
    import torch

    from raydiance.serve.stages.rank_group import RankGroup

    Tensors = Mapping[str, torch.Tensor]

log = logging.getLogger("ray.serve")
LOST_EXIT = 1
LINGER_S = 5.0
"""For which a state stays after its lease: it nearly always comes back."""


class Denoiser:
    """Serve deployment. The loop has its own thread; the event loop only carries messages.

    Raises:
        ConfigError: the attention that is configured cannot be used here, or no layout takes all ranks.
    """

    def __init__(
        self,
        model: ModelConfig,
        config: DenoiserConfig,
        device: str,
        parallel: ParallelConfig = ParallelConfig(),  # noqa: B008 - they are frozen
        scheduling: SchedulingConfig = SchedulingConfig(),  # noqa: B008
    ) -> None:
        start = StartUp("denoiser", model.id)
        folder = resolve.resolve(model.path, model.revision)
        self._config = config
        self._defaults = model.defaults
        self._ranks: RankGroup | None = None
        card = registry.card(folder, model.id).with_defaults(model.defaults)
        costs = Costs(limits_of(parallel, card, model.offload))
        self._metrics = StepMetrics(model.id) if parallel.gpus > 1 else None

        def build() -> Fleet:
            return self._open(folder, model, parallel, device)

        rules = Rules(
            max_batch_size=config.max_batch_size,
            max_batch_tokens=config.max_batch_tokens,
            quantum_s=scheduling.quantum_s,
            patience_s=scheduling.patience_s,
            headroom=min(scheduling.headroom, parallel.gpus - 1),
        )
        self._loop = DenoisingLoop(
            build,
            Planner(policy(scheduling.policy), costs, rules),
            calibration_s=parallel.calibration_s,
            observe=self._metrics,
            lost=self._end,
        )
        start.done()

    def _open(self, folder: Path, model: ModelConfig, parallel: ParallelConfig, device: str) -> Fleet:
        """The ranks of this replica; called in the loop's thread."""
        from raydiance.serve.stages.build import alone, check_attention

        if parallel.gpus == 1:
            return alone(folder, model, self._config, device)
        from raydiance.serve.stages.rank_group import RankGroup

        check_attention(model, self._config, "cpu" if parallel.device == "cpu" else "cuda")
        group = ray.util.get_current_placement_group()
        if group is None:
            raise ConfigError(f"parallel.gpus={parallel.gpus}: the replica has no placement group")
        self._ranks = RankGroup(folder, model, self._config, parallel, group, self._end)
        return self._ranks

    def _end(self, error: RanksLost) -> None:
        """The replica is replaced whole, and at once: Serve starts another when its process is gone.

        Whoever listens to a stream of it is told by Ray, and goes on from the last checkpoint that it received.
        """
        log.error("replica %d ends, its ranks with it: %s (%s)", os.getpid(), error, error.__cause__)
        if self._ranks is not None:
            self._ranks.kill()
        os._exit(LOST_EXIT)

    async def card(self) -> dict[str, Any]:
        return self._loop.fleet.card.with_defaults(self._defaults).to_dict()

    async def generate(
        self, work: Work, encoded: list[Tensors] | None, inputs: Tensors | None = None
    ) -> AsyncIterator[StageEvent]:
        """Denoises one sample to its end, or to that of its lease. Cancelling the stream stops it within one step.

        Args:
            encoded: the embeddings of the prompt and, with guidance, of the negative prompt; None where the replica
                keeps the state of the lease before.
            inputs: what the VAE stage made of pictures, video and mask.

        Raises CheckpointRefused when the work's checkpoint belongs to other conditioning, StateGone where none is kept.
        """
        report, linger_s = Reporter(work, self._config), 0.0
        if encoded is not None:
            self._loop.join(Start(work.id, work.spec, encoded, inputs, work.checkpoint, work.step, work.terms), report)
        elif not self._loop.rejoin(work.id, work.step, work.terms, report):
            raise StateGone(f"{work.id} is not kept here at step {work.step}")
        try:
            while True:
                event = await report.events.get()
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, Leased):
                    linger_s = LINGER_S
                yield event
                if isinstance(event, Denoised | Leased):
                    return
        finally:  # who joins for it again meanwhile has another report
            if linger_s:
                asyncio.get_running_loop().call_later(linger_s, self._loop.leave, work.id, report)
            else:
                self._loop.leave(work.id, report)

    async def stats(self) -> dict[str, Any]:
        return {
            "active": self._loop.num_active,
            "steps": self._loop.num_steps,
            "busy_s": self._loop.busy_s,
            "forwards": self._loop.num_forwards,
            "rows": self._loop.num_rows,
            "decisions": dict(self._loop.decisions),
            "pid": os.getpid(),
            "ranks": [] if self._ranks is None else self._ranks.pids,
            "ways": {} if self._metrics is None else dict(self._metrics.counts),
            "costs": [(shape.work, str(way), seconds) for shape, way, seconds in self._loop.costs.table()],
        }

    def check_health(self) -> None:
        """Serve replaces the replica when its loop has died."""
        if not self._loop.is_alive:
            raise RuntimeError("the denoising loop has ended")
