"""The second stage: trajectories are stepped together; whoever asked for one hears of it as a stream of events."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import torch
from ray import ObjectRef

from raydiance.kernels import attention
from raydiance.models import registry, resolve
from raydiance.models.family import Attention
from raydiance.serve.config import DenoiserConfig, ModelConfig
from raydiance.serve.engine.engine import Engine
from raydiance.serve.engine.loop import DenoisingLoop, Update
from raydiance.serve.engine.pack import PackError, pack, unpack
from raydiance.serve.engine.trajectory import Fixed, Trajectory
from raydiance.serve.errors import CheckpointRefused, ConfigError
from raydiance.serve.stages import refs
from raydiance.serve.stages.messages import Checkpointed, Denoised, Previewed, StageEvent, Stepped, Work

Tensors = Mapping[str, torch.Tensor]


class Denoiser:
    """Serve deployment. The loop has its own thread; the event loop only carries messages.

    Raises:
        ConfigError: the attention that is configured cannot be used here.
    """

    def __init__(self, model: ModelConfig, config: DenoiserConfig, device: str) -> None:
        torch.set_num_threads(config.num_threads or os.cpu_count() or 1)
        folder = resolve.resolve(model.path, model.revision)
        self._config = config
        self._defaults = model.defaults
        attend = configured_attention(model, config, device)

        def build() -> Engine:
            family = registry.load(folder, "denoise", model.id, model.load_options("denoise", device))
            if attend is not None:
                family.set_attention(attend)
            return Engine(family)

        self._loop = DenoisingLoop(
            build,
            max_batch_size=config.max_batch_size,
            max_batch_tokens=config.max_batch_tokens,
        )

    async def card(self) -> dict[str, Any]:
        return self._loop.engine.family.card.with_defaults(self._defaults).to_dict()

    async def generate(
        self, work: Work, encoded: list[Tensors], inputs: Tensors | None = None
    ) -> AsyncIterator[StageEvent]:
        """Denoises one sample to its end. Cancelling the stream stops it within one step.

        Args:
            encoded: the embeddings of the prompt and, with guidance, of the negative prompt.
            inputs: what the VAE stage made of pictures, video and mask.
        """
        report = Reporter(self._loop.engine, work, self._config)
        self._loop.join(work.id, lambda engine: begin(engine, work, encoded, inputs), report)
        try:
            while True:
                event = await report.events.get()
                if isinstance(event, Exception):
                    raise event
                yield event
                if isinstance(event, Denoised):
                    return
        finally:
            self._loop.leave(work.id)

    async def stats(self) -> dict[str, Any]:
        return {
            "active": self._loop.num_active,
            "steps": self._loop.num_steps,
            "busy_s": self._loop.busy_s,
            "forwards": self._loop.engine.num_forwards,
            "rows": self._loop.engine.num_rows,
            "pid": os.getpid(),
        }

    def check_health(self) -> None:
        """Serve replaces the replica when its loop has died."""
        if not self._loop.is_alive:
            raise RuntimeError("the denoising loop has ended")


def configured_attention(model: ModelConfig, config: DenoiserConfig, device: str) -> Attention | None:
    """For `Family.set_attention`; None where diffusers' own stays. The size of a head is checked when it is called.

    Raises:
        ConfigError: what is configured is missing, or cannot run on this device or in this dtype.
    """
    on = torch.device(device)
    try:
        name = attention.choose(config.attention, on, getattr(torch, model.dtype), None, False)
    except attention.AttentionUnavailable as e:
        raise ConfigError(f"denoiser.attention={config.attention} for model '{model.id}': {e}") from e
    if config.attention == "auto" and name == "sdpa" and on.type == "cpu":
        return None
    return partial(attention.attend, backend=config.attention)


def begin(engine: Engine, work: Work, encoded: list[Tensors], inputs: Tensors | None) -> Trajectory:
    """Anew, or from its checkpoint; raises CheckpointRefused when that belongs to other conditioning."""
    negative = encoded[1] if len(encoded) > 1 else None
    conditioning = engine.family.conditioning(work.spec, encoded[0], negative, inputs)
    if work.checkpoint is None:
        return engine.start(work.spec, conditioning)
    try:
        return unpack(work.checkpoint, Fixed(work.spec, conditioning))
    except PackError as e:
        raise CheckpointRefused(str(e)) from e


class Reporter:
    """Turns the updates of one trajectory into events, in the loop's thread: only what is due crosses to the other.

    Attributes:
        events: for the event loop; an exception is the end.
    """

    def __init__(self, engine: Engine, work: Work, config: DenoiserConfig) -> None:
        self.events: asyncio.Queue[StageEvent | Exception] = asyncio.Queue()
        self._engine = engine
        self._config = config
        self._previews = {step: i for i, step in enumerate(work.preview_steps)}
        self._event_loop = asyncio.get_running_loop()
        self._started = self._told = self._saved = time.monotonic()

    def __call__(self, update: Update) -> None:
        try:
            for event in self._due(update):
                self._post(event)
        except Exception as e:  # noqa: BLE001 - this sample's own failure, raised to whoever asked for it
            self._post(e)

    def _post(self, event: StageEvent | Exception) -> None:
        self._event_loop.call_soon_threadsafe(self.events.put_nowait, event)

    def _due(self, update: Update) -> list[StageEvent]:
        value = update.trajectory
        if update.error is not None or value is None:
            raise update.error or RuntimeError("an update of nothing")
        at = time.monotonic()
        if value.is_done:
            return [Denoised(self._put(self._engine.finish(value)), at - self._started)]
        due: list[StageEvent] = []
        if value.step_index in self._previews:
            due.append(Previewed(self._previews[value.step_index], self._put(self._engine.preview(value))))
        if at - self._saved >= self._config.checkpoint_interval_s:
            self._saved = at
            due.append(Checkpointed(value.step_index, pack(value, with_fixed=False)))
        if at - self._told >= self._config.progress_interval_s:
            self._told = at
            due.append(Stepped(value.step_index, value.num_steps))
        return due

    def _put(self, latents: torch.Tensor) -> ObjectRef[Any]:
        return refs.put(latents, self._event_loop)
