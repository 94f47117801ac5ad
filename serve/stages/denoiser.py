"""The second stage: trajectories are stepped together; whoever asked for one hears of it as a stream of events."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import torch

from raydiance.models import registry, resolve
from raydiance.serve.config import DenoiserConfig, ModelConfig
from raydiance.serve.engine.engine import Engine
from raydiance.serve.engine.loop import DenoisingLoop, Update
from raydiance.serve.engine.pack import PackError, pack, unpack
from raydiance.serve.engine.trajectory import Fixed, Trajectory
from raydiance.serve.errors import CheckpointRefused
from raydiance.serve.stages import refs
from raydiance.serve.stages.messages import Checkpointed, Denoised, Previewed, StageEvent, Stepped, Work

Tensors = Mapping[str, torch.Tensor]


class Denoiser:
    """Serve deployment. The loop has its own thread; the event loop only carries messages."""

    def __init__(self, model: ModelConfig, config: DenoiserConfig, device: str) -> None:
        torch.set_num_threads(config.num_threads or os.cpu_count() or 1)
        folder = resolve.resolve(model.path, model.revision)
        self._family = registry.load(folder, "denoise", model.id, device=device, dtype=model.dtype)
        self._engine = Engine(self._family)
        self._loop = DenoisingLoop(
            self._engine, max_batch_size=config.max_batch_size, max_batch_tokens=config.max_batch_tokens
        )
        self._config = config

    async def card(self) -> dict[str, Any]:
        return self._family.card.to_dict()

    async def generate(
        self, work: Work, encoded: list[Tensors], image: Tensors | None = None
    ) -> AsyncIterator[StageEvent]:
        """Denoises one sample to its end. Cancelling the stream stops it within one step.

        Args:
            encoded: the embeddings of the prompt and, with guidance, of the negative prompt.
            image: what the VAE stage made of the reference images.
        """
        negative = encoded[1] if len(encoded) > 1 else None
        conditioning = self._family.conditioning(work.spec, encoded[0], negative, image)
        if work.checkpoint is None:
            trajectory = self._engine.start(work.spec, conditioning)
        else:
            try:
                trajectory = unpack(work.checkpoint, Fixed(work.spec, conditioning))
            except PackError as e:
                raise CheckpointRefused(str(e)) from e
        async for event in self._stream(work, trajectory):
            yield event

    async def _stream(self, work: Work, trajectory: Trajectory) -> AsyncIterator[StageEvent]:
        started = told = saved = time.monotonic()
        previews = {step: i for i, step in enumerate(work.preview_steps)}
        updates: asyncio.Queue[Update] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def publish(update: Update) -> None:
            loop.call_soon_threadsafe(updates.put_nowait, update)

        if trajectory.is_done:
            updates.put_nowait(Update(trajectory))
        else:
            self._loop.join(work.id, trajectory, publish)
        try:
            while True:
                update = await updates.get()
                if update.error is not None:
                    raise update.error
                value, at = update.trajectory, time.monotonic()
                if value.is_done:
                    yield Denoised(refs.put(self._engine.finish(value)), at - started)
                    return
                if value.step_index in previews:
                    yield Previewed(previews[value.step_index], refs.put(self._engine.preview(value)))
                if at - saved >= self._config.checkpoint_interval_s:
                    saved = at
                    yield Checkpointed(value.step_index, pack(value, with_fixed=False))
                if at - told >= self._config.progress_interval_s:
                    told = at
                    yield Stepped(value.step_index, value.num_steps)
        finally:
            self._loop.leave(work.id)

    async def stats(self) -> dict[str, Any]:
        return {
            "active": self._loop.num_active,
            "steps": self._loop.num_steps,
            "busy_s": self._loop.busy_s,
            "forwards": self._engine.num_forwards,
            "rows": self._engine.num_rows,
            "pid": os.getpid(),
        }

    def check_health(self) -> None:
        """Serve replaces the replica when its loop has died."""
        if not self._loop.is_alive:
            raise RuntimeError("the denoising loop has ended")
