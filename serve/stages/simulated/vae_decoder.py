"""The decoding stage without a VAE: it takes its time, and stores a file that says that it is simulated."""

from __future__ import annotations

import asyncio
import base64
import os
import time
from collections.abc import Sequence
from typing import Any

from raydiance.models import registry, resolve
from raydiance.models.spec import Spec
from raydiance.serve import imaging, media
from raydiance.serve.config import Config, ModelConfig
from raydiance.serve.engine import cost_model
from raydiance.serve.engine.cost_model import Part, Work
from raydiance.serve.request import Output, VideoInput
from raydiance.serve.stages.messages import Decoded, Given
from raydiance.serve.stages.simulated import placards
from raydiance.serve.stages.simulated.costs import Simulated
from raydiance.serve.stages.simulated.timeline import Timeline
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.job import Artifact


class SimulatedVAEDecoder:
    """Serve deployment; its methods are those of `VAEDecoder`. Files that are given are not looked into."""

    def __init__(self, model: ModelConfig, config: Config, device: str, simulated: Simulated) -> None:  # noqa: ARG002
        self._card = registry.card(resolve.resolve(model.path, model.revision), model.id)
        self._artifacts = ArtifactStore(config.storage.artifacts)
        self._simulated = simulated
        self._device, self._timeline = asyncio.Lock(), Timeline()
        time.sleep(simulated.startup_s / simulated.speed)

    async def encode_inputs(self, spec: Spec, given: Sequence[Given]) -> dict[str, Any]:
        await self._compute("inputs", cost_model.inputs_work(spec))
        return {"simulated": [item.role for item in given]}

    async def encode_blank(self, spec: Spec) -> dict[str, Any]:
        return await self.encode_inputs(spec, [])

    async def decode(
        self,
        latents: Any,  # noqa: ARG002
        spec: Spec,
        output: Output,
        prefix: str,
        index: int,
        previous: VideoInput | None = None,
    ) -> Decoded:
        """Stores a placard of at most 256 pixels a side, with as many frames as were asked for."""
        decode_s = await self._compute("decode", cost_model.decode_work(spec, self._card))
        file_s = self._simulated.seconds(cost_model.file_part(spec), cost_model.file_work(spec))
        num_frames, (width, height) = spec.num_frames, placards.fitted(spec.width, spec.height)
        if previous is not None and previous.clip is not None:
            num_frames += previous.clip.num_frames - 1
        began = time.monotonic()
        suffix, data = await asyncio.to_thread(_file, spec, output, width, height, num_frames)
        await asyncio.sleep(file_s - (time.monotonic() - began))
        stored = time.monotonic()
        key = f"{prefix}/{index}.{suffix}"
        await self._artifacts.put(key, data)
        artifact = Artifact(
            key=key,
            index=index,
            content_type=media.CONTENT_TYPES[suffix],
            size_bytes=len(data),
            width=width,
            height=height,
            num_frames=num_frames,
            fps=spec.fps if spec.is_video else None,
            seed=spec.seed,
            simulated=True,
        )
        timings = {"decode_s": decode_s, "encode_file_s": file_s, "store_s": time.monotonic() - stored}
        return Decoded(artifact, timings)

    async def preview(self, latents: Any, spec: Spec) -> dict[str, Any]:  # noqa: ARG002
        await self._compute("decode", cost_model.decode_work(spec, self._card))
        width, height = placards.fitted(spec.width, spec.height)
        b64 = base64.b64encode(placards.picture(width, height, "webp")).decode()
        return {"b64": b64, "format": "webp", "width": width, "height": height, "simulated": True}

    async def stats(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "ranks": [], "tiles": []}

    async def _compute(self, part: Part, work: Work) -> float:
        """One thing at a time, as a device does; the seconds that it took."""
        seconds = self._simulated.seconds(part, work)
        async with self._device:
            await self._timeline.wait(seconds)
        return seconds


def _file(spec: Spec, output: Output, width: int, height: int, num_frames: int) -> tuple[str, bytes]:
    if spec.is_video:
        video_format = "webm" if output.format == "webm" else "mp4"
        return video_format, placards.video(width, height, num_frames, spec.fps, video_format)
    image_format = output.format if output.format in imaging.CONTENT_TYPES else "png"
    return image_format, placards.picture(width, height, image_format, output.compression)
