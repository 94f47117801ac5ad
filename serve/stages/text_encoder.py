"""The first stage: texts become embeddings, in dynamic batches, behind an LRU of what was encoded before."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import ray
import torch
from ray import serve

from raydiance.models import registry, resolve
from raydiance.serve.config import ModelConfig, TextEncoderConfig
from raydiance.serve.stages.messages import Encoded

Tensors = Mapping[str, torch.Tensor]


class TextEncoder:
    """Serve deployment. One text gives the same embedding whatever it was batched with."""

    def __init__(self, model: ModelConfig, config: TextEncoderConfig, device: str) -> None:
        folder = resolve.resolve(model.path, model.revision)
        self._family = registry.load(folder, "encode", model.id, device=device, dtype=model.dtype)
        self._model = model.id
        self._cache: OrderedDict[tuple[str, str], asyncio.Future[Tensors]] = OrderedDict()
        self._cache_entries = config.cache_entries
        self._device_lock = asyncio.Lock()
        self.num_hits = self.num_misses = self.num_batches = 0
        self._encode_batch.set_max_batch_size(config.max_batch_size)  # type: ignore[attr-defined]
        self._encode_batch.set_batch_wait_timeout_s(config.batch_wait_s)  # type: ignore[attr-defined]

    async def encode(self, texts: list[str]) -> Encoded:
        """Embeddings without a batch axis, one mapping per text."""
        started = time.monotonic()
        embeddings = list(await asyncio.gather(*[self._encode_one(text) for text in texts]))
        return Encoded(ray.put(embeddings), time.monotonic() - started)

    async def _encode_one(self, text: str) -> Tensors:
        key = (self._model, text)
        if (found := self._cache.get(key)) is not None:
            self.num_hits += 1
            self._cache.move_to_end(key)
            return await asyncio.shield(found)
        self.num_misses += 1
        # the future is kept, so that equal texts in flight are encoded once
        task = asyncio.ensure_future(self._encode_batch(text))
        self._cache[key] = task
        while len(self._cache) > max(1, self._cache_entries):
            self._cache.popitem(last=False)
        try:
            return await asyncio.shield(task)
        finally:
            if self._cache_entries == 0 or not task.done() or task.cancelled() or task.exception() is not None:
                self._cache.pop(key, None)

    @serve.batch(max_batch_size=16, batch_wait_timeout_s=0.002)
    async def _encode_batch(self, texts: list[str]) -> list[Tensors]:
        async with self._device_lock:
            self.num_batches += 1
            return await asyncio.to_thread(self._family.encode_prompts, texts)

    async def stats(self) -> dict[str, Any]:
        return {"hits": self.num_hits, "misses": self.num_misses, "batches": self.num_batches, "size": len(self._cache)}
