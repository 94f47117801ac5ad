"""What is told of one trajectory while it is denoised."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from ray import ObjectRef

from raydiance.serve.config import DenoiserConfig
from raydiance.serve.engine.members import Update
from raydiance.serve.engine.orders import Wish
from raydiance.serve.engine.pack_error import PackError
from raydiance.serve.errors import CheckpointRefused
from raydiance.serve.stages import refs
from raydiance.serve.stages.messages import Checkpointed, Denoised, Leased, Previewed, Spent, StageEvent, Stepped, Work

if TYPE_CHECKING:
    import torch


CHECKPOINT_SHARE = 0.01
"""Of the time, that checkpoints take at most: one that takes long is made less often."""


class Reporter:
    """Turns the updates of one trajectory into events, in the loop's thread: only what is due crosses to the other.

    Attributes:
        events: for the event loop; an exception is the end.
    """

    def __init__(self, work: Work, config: DenoiserConfig) -> None:
        self.events: asyncio.Queue[StageEvent | Exception] = asyncio.Queue()
        self._config = config
        self._lease_s = work.lease_s
        self._previews = {step: i for i, step in enumerate(work.preview_steps)}
        self._event_loop = asyncio.get_running_loop()
        self._checkpoint_s = 0.0
        self._started = self._told = self._saved = time.monotonic()

    def wish(self, step_index: int) -> Wish:
        """What is due after the step that ends there."""
        at = time.monotonic()
        is_over = self._lease_s is not None and at - self._started >= self._lease_s
        interval_s = max(self._config.checkpoint_interval_s, self._checkpoint_s / CHECKPOINT_SHARE)
        saves = is_over or at - self._saved >= interval_s
        return Wish(step_index in self._previews, saves, is_over)

    def __call__(self, update: Update) -> None:
        try:
            for event in self._due(update):
                self._post(event)
        except Exception as e:  # noqa: BLE001 - this sample's own failure, raised to whoever asked for it
            self._post(e)

    def _post(self, event: StageEvent | Exception) -> None:
        self._event_loop.call_soon_threadsafe(self.events.put_nowait, event)

    def _due(self, update: Update) -> list[StageEvent]:
        if isinstance(update.error, PackError):
            raise CheckpointRefused(str(update.error)) from update.error
        if update.error is not None or update.outcome is None:
            raise update.error or RuntimeError("an update of nothing")
        at, outcome = time.monotonic(), update.outcome
        spent = Spent(at - self._started, update.busy_s, update.gpu_seconds, update.decisions)
        if outcome.result is not None:
            return [Denoised(self._put(outcome.result), spent)]
        due: list[StageEvent] = []
        if outcome.preview is not None:
            due.append(Previewed(self._previews[outcome.step_index], self._put(outcome.preview)))
        if outcome.is_paused and outcome.checkpoint is not None:
            return [*due, Leased(outcome.step_index, outcome.checkpoint, spent)]
        if outcome.checkpoint is not None:
            self._saved, self._checkpoint_s = at, outcome.checkpoint_s
            due.append(Checkpointed(outcome.step_index, outcome.checkpoint))
        if at - self._told >= self._config.progress_interval_s:
            self._told = at
            due.append(Stepped(outcome.step_index, update.num_steps))
        return due

    def _put(self, latents: torch.Tensor) -> ObjectRef[Any]:
        return refs.put(latents, self._event_loop)
