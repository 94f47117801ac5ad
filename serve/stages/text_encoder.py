"""The first stage: texts become embeddings, in dynamic batches, behind an LRU of what was encoded before."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from raydiance.models import registry, resolve
from raydiance.serve.config import ModelConfig, TextEncoderConfig
from raydiance.serve.stages import refs
from raydiance.serve.stages.batcher import Batcher
from raydiance.serve.stages.messages import Encoded
from raydiance.serve.stages.startup import StartUp

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]


class TextEncoder:
    """Serve deployment, of one model or of several that have the same encoder (see `app.shared`).

    One text gives the same embedding whatever it was batched with, and whichever of the models asks.
    """

    def __init__(self, model: ModelConfig, config: TextEncoderConfig, device: str) -> None:
        start = StartUp("text_encoder", model.id)
        self._batcher: Batcher[str, Tensors] = Batcher(self._open(model, device), config.max_batch_size)
        start.done()
        # futures are kept, so that equal texts in flight are encoded once
        self._cache: OrderedDict[str, asyncio.Task[Tensors]] = OrderedDict()
        self._cache_entries = config.cache_entries
        self.num_hits = self.num_misses = 0

    def _open(self, model: ModelConfig, device: str) -> Callable[[list[str]], Awaitable[list[Tensors]]]:
        """What encodes a batch of texts."""
        folder = resolve.resolve(model.path, model.revision)
        thread = ThreadPoolExecutor(1, "text-encoder")  # all of torch's work in one thread: see DenoisingLoop
        load = partial(registry.load, folder, "encode", model.id, model.load_options("encode", device))
        family = thread.submit(load).result()

        async def encode(texts: list[str]) -> list[Tensors]:
            return await asyncio.get_running_loop().run_in_executor(thread, family.encode_prompts, texts)

        return encode

    async def encode(self, texts: list[str]) -> Encoded:
        """Embeddings without a batch axis, one mapping per text."""
        started = time.monotonic()
        embeddings = list(await asyncio.gather(*[self._encode_one(text) for text in texts]))
        return Encoded(refs.put(embeddings, asyncio.get_running_loop()), time.monotonic() - started)

    async def _encode_one(self, text: str) -> Tensors:
        task = self._cache.get(text)
        if task is None:
            self.num_misses += 1
            task = asyncio.ensure_future(self._batcher.submit(text))
            if self._cache_entries:
                self._cache[text] = task
                task.add_done_callback(lambda done: self._forget_failure(text, done))
            while len(self._cache) > self._cache_entries:
                self._cache.popitem(last=False)
        else:
            self.num_hits += 1
            self._cache.move_to_end(text)
        return await asyncio.shield(task)  # a caller that goes away takes nothing from the others

    def _forget_failure(self, text: str, task: asyncio.Task[Tensors]) -> None:
        if (task.cancelled() or task.exception() is not None) and self._cache.get(text) is task:
            del self._cache[text]

    async def stats(self) -> dict[str, Any]:
        return {
            "hits": self.num_hits,
            "misses": self.num_misses,
            "batches": self._batcher.num_batches,
            "size": len(self._cache),
        }
