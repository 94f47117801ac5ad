"""The text encoder's batches and cache, without an encoder."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from raydiance.serve.config import ModelConfig, TextEncoderConfig
from raydiance.serve.engine import cost_model
from raydiance.serve.stages.simulated.costs import Simulated
from raydiance.serve.stages.simulated.timeline import Timeline
from raydiance.serve.stages.text_encoder import TextEncoder


class SimulatedTextEncoder(TextEncoder):
    """Serve deployment."""

    def __init__(self, model: ModelConfig, config: TextEncoderConfig, device: str, simulated: Simulated) -> None:
        self._simulated = simulated
        super().__init__(model, config, device)

    def _open(self, model: ModelConfig, device: str) -> Callable[[list[str]], Awaitable[list[Any]]]:  # noqa: ARG002
        simulated, timeline = self._simulated, Timeline()
        time.sleep(simulated.startup_s / simulated.speed)

        async def encode(texts: list[str]) -> list[Any]:
            await timeline.wait(simulated.seconds("text", cost_model.text_work(len(texts))))
            return [{"simulated": text[:64]} for text in texts]

        return encode
