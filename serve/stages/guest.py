"""The denoising stage of a guest: diffusers' own call in a thread, one request at a time."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import torch

from raydiance.models import registry, resolve
from raydiance.models.guest import Guest
from raydiance.serve.config import DenoiserConfig, ModelConfig
from raydiance.serve.errors import ConfigError
from raydiance.serve.stages import refs
from raydiance.serve.stages.messages import Denoised, Spent, StageEvent, Stepped, Work
from raydiance.serve.stages.startup import StartUp

Tensors = Mapping[str, torch.Tensor]


class Left(Exception):
    """Raised between two steps of a generation that was cancelled."""


class GuestDenoiser:
    """Serve deployment with the calls of `Denoiser`. Requests wait for each other in the thread's queue."""

    def __init__(self, model: ModelConfig, config: DenoiserConfig, device: str) -> None:
        start = StartUp("denoiser", model.id)
        torch.set_num_threads(config.num_threads or os.cpu_count() or 1)
        if config.attention != "auto":
            raise ConfigError(f"denoiser.attention={config.attention}: the guest '{model.id}' keeps its pipeline's own")
        folder = resolve.resolve(model.path, model.revision)
        self._config = config
        self._thread = ThreadPoolExecutor(1, "guest")  # all of torch's work in one thread: see DenoisingLoop
        load = partial(registry.load, folder, "denoise", model.id, model.load_options("denoise", device))
        self._guest = cast("Guest", self._thread.submit(load).result())
        self.num_active = self.num_steps = 0
        self.busy_s = 0.0
        start.done()

    async def card(self) -> dict[str, Any]:
        return self._guest.card.to_dict()

    async def generate(
        self, work: Work, encoded: list[Tensors], inputs: Tensors | None = None
    ) -> AsyncIterator[StageEvent]:
        """One sample to its end; `Denoised` brings its frames. Cancelling the stream stops it within one step.

        Args:
            encoded: empty, for the pipeline encodes its texts itself.
            inputs: the picture that came with it.

        Raises:
            ValueError: embeddings, previews or a checkpoint are brought along.
        """
        if encoded or work.preview_steps or work.checkpoint is not None:
            raise ValueError(f"model '{self._guest.card.id}' is a guest: no embeddings, previews or checkpoints")
        run = Run(self, work, inputs)
        task = asyncio.get_running_loop().run_in_executor(self._thread, run)
        self.num_active += 1
        try:
            while True:
                event = await run.events.get()
                if isinstance(event, Exception):
                    raise event
                yield event
                if isinstance(event, Denoised):
                    return
        finally:
            self.num_active -= 1
            run.left.set()
            task.cancel()  # one that still waits never starts

    async def stats(self) -> dict[str, Any]:
        return {"active": self.num_active, "steps": self.num_steps, "busy_s": self.busy_s, "pid": os.getpid()}


class Run:
    """One generation, called in the thread.

    Attributes:
        events: for the event loop; an exception is the end.
        left: set when nobody waits any longer.
    """

    def __init__(self, stage: GuestDenoiser, work: Work, inputs: Tensors | None) -> None:
        self.events: asyncio.Queue[StageEvent | Exception] = asyncio.Queue()
        self.left = threading.Event()
        self._stage = stage
        self._work = work
        self._inputs = inputs
        self._loop = asyncio.get_running_loop()
        self._told = time.monotonic()

    def __call__(self) -> None:
        started = time.monotonic()
        try:
            if self.left.is_set():
                return
            frames = self._stage._guest.generate(self._work.spec, self._inputs, self._step_ended)
            seconds = time.monotonic() - started
            self._post(Denoised(refs.put(frames, self._loop), Spent(seconds, seconds, seconds)))
        except Left:
            return
        except Exception as e:  # noqa: BLE001 - this sample's own failure, raised to whoever asked for it
            self._post(e)
        finally:
            self._stage.busy_s += time.monotonic() - started

    def _step_ended(self, step: int, num_steps: int) -> None:
        self._stage.num_steps += 1
        if self.left.is_set():
            raise Left
        at = time.monotonic()
        if at - self._told >= self._stage._config.progress_interval_s:
            self._told = at
            self._post(Stepped(step, num_steps))

    def _post(self, event: StageEvent | Exception) -> None:
        self._loop.call_soon_threadsafe(self.events.put_nowait, event)
