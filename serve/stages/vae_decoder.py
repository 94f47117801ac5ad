"""The third stage: given pictures and videos become latents, latents become frames, frames become stored files."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import ray
import torch

from raydiance.models import registry, resolve
from raydiance.models.family import Audio
from raydiance.models.spec import Spec
from raydiance.serve import imaging, media, sound
from raydiance.serve.config import Config, ModelConfig
from raydiance.serve.engine.fleet import RanksLost
from raydiance.serve.errors import ConfigError
from raydiance.serve.patience import patiently
from raydiance.serve.request import ImageFormat, Output, VideoFormat, VideoInput
from raydiance.serve.stages.given import blank_inputs, joined, read_inputs
from raydiance.serve.stages.messages import Decoded, Given
from raydiance.serve.stages.startup import StartUp
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.job import Artifact

if TYPE_CHECKING:
    from raydiance.serve.stages.decoder_actors import DecoderActors
    from raydiance.serve.stages.decoder_ranks import DecoderRanks

log = logging.getLogger("ray.serve")
PREVIEW_FORMAT: ImageFormat = "webp"
LOST_EXIT = 1


class VAEDecoder:
    """Serve deployment. It holds the whole VAE, so what a request brings along is encoded here too.

    With `vae_decoder.gpus` above 1 it is the first of so many ranks, and what is decoded in tiles is decoded by all.

    Raises:
        ConfigError: the ranks cannot be where they were placed.
    """

    def __init__(self, model: ModelConfig, config: Config, device: str) -> None:
        start, gpus = StartUp("vae_decoder", model.id), config.vae_decoder.gpus
        num_threads = config.denoiser.num_threads or max(1, (os.cpu_count() or 1) // gpus)
        torch.set_num_threads(num_threads)
        folder = resolve.resolve(model.path, model.revision)
        self._artifacts = ArtifactStore(config.storage.artifacts)
        self._device_thread = ThreadPoolExecutor(1, "vae")  # all of torch's work in one thread: see DenoisingLoop
        self._others = None if gpus == 1 else _start_others(folder, model, config, device, num_threads)
        load = partial(registry.load, folder, "decode", model.id, model.load_options("decode", device))
        self._family = self._device_thread.submit(load).result()
        self._ranks: DecoderRanks | None = None
        if self._others is not None:
            self._ranks = self._device_thread.submit(self._others.join, self._family).result()
        start.done()

    async def encode_inputs(self, spec: Spec, given: Sequence[Given]) -> Mapping[str, torch.Tensor]:
        """What was stored with the job -> conditioning. Sound that is gone on from is looked into as well.

        Raises:
            InvalidRequest, ValueError: a file is damaged.
        """
        files = [(item, await self._artifacts.get(item.key)) for item in given]
        inputs = await asyncio.to_thread(read_inputs, files, spec)
        for item, data in files:
            if spec.audio and item.role == "first_frame" and media.is_video(data):
                await asyncio.to_thread(sound.check_sound, data)
        tensors: Mapping[str, torch.Tensor] = await self._on_device(self._family.encode_inputs, spec, inputs)
        return tensors

    async def encode_blank(self, spec: Spec) -> Mapping[str, torch.Tensor]:
        """Conditioning of grey inputs, for a warm-up."""
        inputs = blank_inputs(spec, self._family.card.accepts(spec.task))
        tensors: Mapping[str, torch.Tensor] = await self._on_device(self._family.encode_inputs, spec, inputs)
        return tensors

    async def decode(
        self,
        latents: torch.Tensor,
        spec: Spec,
        output: Output,
        prefix: str,
        index: int,
        previous: VideoInput | None = None,
    ) -> Decoded:
        """Decodes, encodes and stores one sample. Running it twice writes the same files again.

        Args:
            previous: a stored video that comes before it in the file. Its sound is kept where the spec asks for sound.

        Raises:
            RuntimeError: the spec asks for sound, and the family gave none.
        """
        started = time.monotonic()
        chunks: Iterable[np.ndarray] = await self._decode(latents, spec)
        decoded = time.monotonic()
        timings = {"decode_s": decoded - started}
        audio: Audio | None = None
        if spec.audio:
            audio = await self._decode_audio(latents, spec)
            timings["decode_audio_s"] = time.monotonic() - decoded
        begun = time.monotonic()
        num_frames = spec.num_frames
        if previous is not None:
            key, clip = previous.source.artifact, previous.clip
            if key is None or clip is None:
                raise ValueError("the previous video was not stored with the job")
            data = await self._artifacts.get(key)
            chunks = joined(data, chunks, spec)
            num_frames += clip.num_frames - 1
            if audio is not None:
                audio = await asyncio.to_thread(sound.joined_sound, data, clip, audio, spec.fps)
        suffix, content_type, data = await asyncio.to_thread(_encode, chunks, audio, spec, output)
        encoded = time.monotonic()
        key = f"{prefix}/{index}.{suffix}"
        await patiently(lambda: self._artifacts.put(key, data))  # what was denoised is not thrown away for that
        artifact = Artifact(
            key=key,
            index=index,
            content_type=content_type,
            size_bytes=len(data),
            width=spec.width,
            height=spec.height,
            num_frames=num_frames,
            fps=spec.fps if spec.is_video else None,
            has_audio=audio is not None,
            seed=spec.seed,
        )
        timings |= {"encode_file_s": encoded - begun, "store_s": time.monotonic() - encoded}
        return Decoded(artifact, timings)

    async def preview(self, latents: torch.Tensor, spec: Spec) -> dict[str, Any]:
        """The middle frame of an x0 estimate as base64 WebP."""
        chunks = await self._decode(latents, spec)
        frames = np.concatenate(chunks)
        data = imaging.encode_image(frames[len(frames) // 2], PREVIEW_FORMAT, None)
        b64 = base64.b64encode(data).decode()
        return {"b64": b64, "format": PREVIEW_FORMAT, "width": spec.width, "height": spec.height}

    async def stats(self) -> dict[str, Any]:
        """`tiles`: decoded so far by each of several ranks, this process first."""
        return {
            "pid": os.getpid(),
            "ranks": [] if self._others is None else [os.getpid(), *self._others.pids],
            "tiles": [] if self._ranks is None else self._ranks.num_tiles,
        }

    async def _decode(self, latents: torch.Tensor, spec: Spec) -> list[np.ndarray]:
        """Chunk by chunk: it ends within one when it is cancelled, and a preview waits for no whole video."""
        decode = self._family.decode if self._ranks is None else self._ranks.decode
        frames, chunks = [], decode(latents, spec)
        while (chunk := await self._on_device(next, chunks, None)) is not None:
            frames.append(chunk)
        return frames

    async def _decode_audio(self, latents: torch.Tensor, spec: Spec) -> Audio:
        audio: Audio | None = await self._on_device(self._family.decode_audio, latents, spec)
        if audio is None:
            card = self._family.card
            raise RuntimeError(f"audio=true: family '{card.family}' of model '{card.id}' made no sound")
        return audio

    async def _on_device(self, function: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._device_thread, function, *args)


def _start_others(folder: Path, model: ModelConfig, config: Config, device: str, num_threads: int) -> DecoderActors:
    from raydiance.serve.stages.decoder_actors import DecoderActors

    group = ray.util.get_current_placement_group()
    if group is None:
        raise ConfigError(f"vae_decoder.gpus={config.vae_decoder.gpus}: the replica has no placement group")
    deadline_s = config.parallel_of(model).start_deadline_s
    others = folder, model, config.vae_decoder, device, num_threads
    return DecoderActors(*others, group=group, start_deadline_s=deadline_s, lost=_end)


def _end(error: RanksLost) -> None:
    """The replica is replaced whole: Serve starts another when its process is gone, and who waits for it asks again."""
    log.error("VAE decoder %d ends, its ranks with it: %s (%s)", os.getpid(), error, error.__cause__)
    os._exit(LOST_EXIT)


def _encode(chunks: Iterable[np.ndarray], audio: Audio | None, spec: Spec, output: Output) -> tuple[str, str, bytes]:
    """Frames and sound -> suffix, content type and bytes of the file."""
    if spec.is_video:
        video_format = cast("VideoFormat", output.format or "mp4")
        data = media.encode_video(iter(chunks), spec.fps, video_format, audio=audio)
        return video_format, media.CONTENT_TYPES[video_format], data
    suffix = cast("ImageFormat", output.format or "png")
    return (
        suffix,
        imaging.CONTENT_TYPES[suffix],
        imaging.encode_image(next(iter(chunks))[0], suffix, output.compression),
    )
