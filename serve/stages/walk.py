"""What walks one job through the stages. Tensors go from stage to stage by reference; only checkpoints pass here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray import ObjectRef
from ray.exceptions import RayTaskError
from ray.serve.handle import DeploymentHandle, DeploymentResponse

from raydiance.models.card import ModelCard
from raydiance.models.spec import Spec
from raydiance.serve.calls import ask, call
from raydiance.serve.errors import CheckpointRefused, GenerationFailed, ReplicaLost
from raydiance.serve.feed import Feed
from raydiance.serve.request import given, previous_video
from raydiance.serve.samples import default_spec
from raydiance.serve.stages.denoising import LOST, denoising
from raydiance.serve.stages.messages import (
    Checkpointed,
    Decoded,
    Denoised,
    Encoded,
    Given,
    Previewed,
    Stepped,
    Work,
    preview_steps,
)
from raydiance.serve.storage.job import Artifact, Job, artifact_prefix

log = logging.getLogger("ray.serve")
MAX_LOSSES = 3
RETRY_S = 0.5
PROGRESS_AT_DENOISED = 95


@dataclass(frozen=True, slots=True)
class Stages:
    """Handles of the deployments of one model. A guest encodes its texts itself, and has no `text_encoder`."""

    text_encoder: DeploymentHandle[Any] | None
    denoiser: DeploymentHandle[Any]
    vae_decoder: DeploymentHandle[Any]

    async def card(self) -> dict[str, Any]:
        card: dict[str, Any] = await call(self.denoiser, "card")
        return card

    async def warm_up(self, card: ModelCard) -> None:
        """A two-step generation of the default size through all of them."""
        spec = default_spec(card, num_inference_steps=2)
        embeddings, _ = await self.encode(spec, card)
        inputs = call(self.vae_decoder, "encode_blank", spec) if card.accepts(spec.task) else None
        work = Work(f"warm-up-{card.id}", spec)
        async with denoising(self.denoiser, work, embeddings, inputs) as events:
            async for event in events:
                if isinstance(event, Denoised):
                    await call(self.vae_decoder, "preview", event.latents, spec)

    async def encode(self, spec: Spec, card: ModelCard) -> tuple[ObjectRef[Any] | list[Any], float]:
        """The embeddings of a spec's texts, by reference, and the seconds that it took."""
        if self.text_encoder is None:
            return [], 0.0
        encoded: Encoded = await ask(self.text_encoder, "encode", texts_of(spec, card))
        return encoded.embeddings, encoded.seconds


def texts_of(spec: Spec, card: ModelCard) -> list[str]:
    return [spec.prompt, spec.negative_prompt] if card.uses_negative(spec) else [spec.prompt]


class Walk:
    """One job on its way.

    Args:
        save_progress: writes percent to the jobs table.
    """

    def __init__(
        self, stages: Stages, card: ModelCard, job: Job, feed: Feed, save_progress: Callable[[int], None]
    ) -> None:
        self._stages = stages
        self._card = card
        self._job = job
        self._feed = feed
        self._save_progress = save_progress
        self._specs = [Spec.from_dict(values) for values in job.specs]
        self._done = [0.0] * len(self._specs)
        self._timings: dict[str, float] = {}

    async def run(self) -> tuple[list[Artifact], dict[str, float]]:
        """The stored files, in sample order, and seconds per stage (the slowest sample's)."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._sample(i, spec)) for i, spec in enumerate(self._specs)]
        except ExceptionGroup as e:
            raise e.exceptions[0] from e
        return [task.result() for task in tasks], self._timings

    async def _sample(self, index: int, spec: Spec) -> Artifact:
        """One sample, tried again from its last checkpoint when a replica dies under it."""
        checkpoint: Checkpointed | None = None

        def keep(event: Checkpointed) -> None:
            nonlocal checkpoint
            checkpoint = event

        for loss in range(MAX_LOSSES + 1):
            work = Work(
                id=f"{self._job.id}:{index}:{self._job.attempt}.{loss}",
                spec=spec,
                preview_steps=preview_steps(spec.num_inference_steps, spec.first_step, self._job.request.previews),
                checkpoint=None if checkpoint is None else checkpoint.data,
                step=0 if checkpoint is None else checkpoint.step,
            )
            try:
                latents = await self._denoise(index, work, keep)
                return await self._decode(index, spec, latents)
            except (ReplicaLost, *LOST) as e:
                at = 0 if checkpoint is None else checkpoint.step
                log.warning("sample %d of job %s lost a replica; on from step %d: %s", index, self._job.id, at, e)
                await asyncio.sleep(RETRY_S * 2**loss)
            except RayTaskError as e:
                if checkpoint is None or not isinstance(e.cause, CheckpointRefused):
                    raise
                log.warning("sample %d of job %s starts anew, its checkpoint does not fit: %s", index, self._job.id, e)
                checkpoint = None
        raise GenerationFailed(f"sample {index} lost its replica {MAX_LOSSES + 1} times; it is not tried again")

    async def _denoise(self, index: int, work: Work, keep: Callable[[Checkpointed], None]) -> ObjectRef[Any]:
        spec = work.spec
        embeddings, seconds = await self._stages.encode(spec, self._card)
        self._time("encode_s", seconds)
        inputs = await self._encode_inputs(spec)
        async with denoising(self._stages.denoiser, work, embeddings, inputs) as events:
            async for event in events:
                match event:
                    case Stepped(step, num_steps):
                        await self._progress(index, step, num_steps)
                    case Checkpointed():
                        keep(event)
                    case Previewed(preview_index, estimate):
                        await self._preview(index, preview_index, estimate, spec)
                    case Denoised(latents, seconds):
                        self._time("denoise_s", seconds)
                        await self._progress(index, spec.num_inference_steps, spec.num_inference_steps)
                        return latents
        raise GenerationFailed(f"the denoiser ended sample {index} without a result")

    async def _encode_inputs(self, spec: Spec) -> DeploymentResponse[Any] | None:
        files = [Given(role, key) for role, key in given(self._job.request, spec.task)]
        takes = self._card.accepts(spec.task)  # what is optional and not given is encoded too: as nothing
        return call(self._stages.vae_decoder, "encode_inputs", spec, files) if takes else None

    async def _preview(self, index: int, preview_index: int, estimate: ObjectRef[Any], spec: Spec) -> None:
        image = await ask(self._stages.vae_decoder, "preview", estimate, spec)
        self._feed.publish("preview", {"index": index, "preview_index": preview_index, **image})

    async def _decode(self, index: int, spec: Spec, latents: ObjectRef[Any]) -> Artifact:
        output, prefix = self._job.request.output, artifact_prefix(self._job.id)
        previous = previous_video(self._job.request)
        decoded: Decoded = await ask(self._stages.vae_decoder, "decode", latents, spec, output, prefix, index, previous)
        for stage, seconds in decoded.timings.items():
            self._time(stage, seconds)
        return decoded.artifact

    async def _progress(self, index: int, step: int, num_steps: int) -> None:
        self._done[index] = max(self._done[index], step / num_steps)
        percent = int(PROGRESS_AT_DENOISED * sum(self._done) / len(self._done))
        data = {"index": index, "step": step, "num_steps": num_steps, "progress": percent, "stage": "denoise"}
        self._feed.publish("progress", data)
        await asyncio.to_thread(self._save_progress, percent)

    def _time(self, stage: str, seconds: float) -> None:
        self._timings[stage] = max(self._timings.get(stage, 0.0), seconds)
