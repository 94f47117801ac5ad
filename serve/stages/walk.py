"""What walks one job through the stages. Tensors go from stage to stage by reference; only checkpoints pass here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ray import ObjectRef
from ray.exceptions import RayTaskError
from ray.serve.handle import DeploymentHandle, DeploymentResponse

from raydiance.models.card import ModelCard
from raydiance.models.spec import Spec
from raydiance.serve.calls import ask, call
from raydiance.serve.engine.terms import NO_TERMS, Terms
from raydiance.serve.errors import CheckpointRefused, GenerationFailed, ReplicaLost, StateGone, Unavailable
from raydiance.serve.feed import Feed
from raydiance.serve.request import given, previous_video
from raydiance.serve.stages.denoising import LOST, denoising
from raydiance.serve.stages.messages import (
    Checkpointed,
    Decoded,
    Denoised,
    Encoded,
    Given,
    Leased,
    Previewed,
    Spent,
    Stepped,
    Work,
    preview_steps,
)
from raydiance.serve.stages.recovery import LOST_REPLICA, RECOMPUTED, Recovery
from raydiance.serve.stages.underway import Underway
from raydiance.serve.storage.job import Artifact, Job, artifact_prefix
from raydiance.serve.strikes import ENCODE

log = logging.getLogger("ray.serve")
SAVE_S = 0.5
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

    async def encode(self, spec: Spec, card: ModelCard) -> tuple[ObjectRef[Any] | list[Any], float]:
        """The embeddings of a spec's texts, by reference, and the seconds that it took."""
        if self.text_encoder is None:
            return [], 0.0
        encoded: Encoded = await ask(self.text_encoder, "encode", texts_of(spec, card))
        return encoded.embeddings, encoded.seconds


def texts_of(spec: Spec, card: ModelCard) -> list[str]:
    return [spec.prompt, spec.negative_prompt] if card.uses_negative(spec) else [spec.prompt]


@asynccontextmanager
async def at_once(index: int, share: float) -> AsyncIterator[None]:  # noqa: ARG001
    """The turns of a walk that waits for nobody."""
    yield


class Walk:
    """One job on its way.

    Args:
        save_progress: writes percent to the jobs table.
        begin: called when a sample has its first turn; the job as it is then.
        turns: of a sample, by its index and the share of its steps that remain: a lease is denoised inside of one.
        terms: of each sample.
        prices_s: seconds of a replica that each takes.
        lease_s: of steps, after which a sample waits for its next turn.
        recovery: from what dies under it.

    Attributes:
        gpu_seconds: by stage, of all samples.
        busy_s: of each sample, its share of its steps.
        decisions: how often samples were stepped, or waited in a replica, by reason; and what was lost under them.
    """

    def __init__(
        self,
        stages: Stages,
        card: ModelCard,
        job: Job,
        feed: Feed,
        save_progress: Callable[[int], Awaitable[None]],
        *,
        begin: Callable[[], Awaitable[Job]],
        turns: Callable[[int, float], AbstractAsyncContextManager[None]] = at_once,
        terms: Sequence[Terms] = (),
        prices_s: Sequence[float] = (),
        lease_s: float | None = None,
        recovery: Recovery | None = None,
    ) -> None:
        self.gpu_seconds = {"text_encode": 0.0, "denoise": 0.0, "decode": 0.0}
        self.decisions: Counter[str] = Counter()
        self._stages = stages
        self._card = card
        self._job = job
        self._feed = feed
        self._save_progress = save_progress
        self._begin = begin
        self._recovery = recovery or Recovery()
        self._turns = turns
        self._specs = [Spec.from_dict(values) for values in job.specs]
        self._terms = terms or [NO_TERMS] * len(self._specs)
        self._prices_s = prices_s or [0.0] * len(self._specs)
        self._lease_s = lease_s if stages.text_encoder is not None else None  # a guest cannot be interrupted
        self.busy_s = [0.0] * len(self._specs)
        self._done = [0.0] * len(self._specs)
        self._denoise_s = [0.0] * len(self._specs)
        self._timings: dict[str, float] = {}
        self._saved = 0, time.monotonic()  # percent, and when; what is done at once is not written before

    async def run(self) -> tuple[list[Artifact], dict[str, float]]:
        """The stored files, in sample order, and seconds per stage (the slowest sample's)."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._sample(Underway(i, spec))) for i, spec in enumerate(self._specs)]
        except ExceptionGroup as e:
            raise e.exceptions[0] from e
        return [task.result() for task in tasks], self._timings

    async def _sample(self, sample: Underway) -> Artifact:
        """One sample, tried again from its last checkpoint when a replica dies under it."""
        place = f"sample {sample.index} of job {self._job.id}"
        if self._job.attempt and self._recovery.keeping is not None:
            sample.checkpoint = await self._recovery.keeping.load(sample.index)
        while True:
            sample.tries, sample.last = sample.tries + 1, None
            try:
                latents = await self._denoise(sample)
                return await self._decode(sample.index, sample.spec, latents)
            except (ReplicaLost, *LOST) as e:
                log.warning("%s lost a replica; on from step %d: %s", place, sample.step, e)
                self.decisions[LOST_REPLICA] += 1
                self.decisions[RECOMPUTED] += max(sample.place - sample.step, 0)
                await self._recovery.lost(sample.index, sample.place, sample.spec.num_inference_steps, e)
            except Unavailable as e:  # what a stage reads or writes
                await sample.away(e)
            except RayTaskError as e:
                if sample.checkpoint is None or not isinstance(e.cause, CheckpointRefused):
                    raise
                log.warning("%s starts anew, its checkpoint does not fit: %s", place, e)
                sample.checkpoint = None
                if self._recovery.keeping is not None:
                    await self._recovery.keeping.forget(sample.index)

    async def _denoise(self, sample: Underway) -> ObjectRef[Any]:
        """Lease after lease, each when it is its turn; after a loss, alone among those that lost a replica."""
        conditions: tuple[Any, Any] | None = None
        while True:
            async with self._turns(sample.index, sample.share):
                job, sample.place = await self._begin(), ENCODE
                if conditions is None:
                    conditions = await self._encode(sample.spec)
                    self._recovery.advanced(sample.index)
                sample.place = sample.step
                is_suspect = self._recovery.is_suspect(sample.index, sample.place)
                async with self._recovery.quarantine.held(is_suspect) as sample.clear:
                    work = self._work(f"{job.id}:{sample.index}:{job.attempt}.{sample.tries}", sample)
                    try:
                        latents = await self._lease(sample, work, *conditions)
                    except (StateGone, RayTaskError) as e:
                        if not isinstance(getattr(e, "cause", e), StateGone):
                            raise
                        sample.last, latents = None, None
            if latents is not None:
                return latents

    def _work(self, work_id: str, sample: Underway) -> Work:
        spec = sample.spec
        return Work(
            id=work_id,
            spec=spec,
            preview_steps=preview_steps(spec.num_inference_steps, spec.first_step, self._job.request.previews),
            checkpoint=None if sample.checkpoint is None else sample.checkpoint.data,
            step=0 if sample.checkpoint is None else sample.checkpoint.step,
            terms=self._terms[sample.index],
            lease_s=self._lease_s,
        )

    async def _encode(self, spec: Spec) -> tuple[Any, Any]:
        embeddings, seconds = await self._stages.encode(spec, self._card)
        self._time("encode_s", seconds)
        self.gpu_seconds["text_encode"] += seconds
        return embeddings, await self._encode_inputs(spec)

    async def _lease(self, sample: Underway, work: Work, embeddings: Any, inputs: Any) -> ObjectRef[Any] | None:
        """The latents, or None where the lease ended before."""
        seconds = self._prices_s[sample.index] * sample.share
        group = None if self._job.group_id is None else (self._job.tenant, self._job.group_id)
        async with denoising(
            self._stages.denoiser, work, embeddings, inputs, seconds=seconds, last=sample.last, group=group
        ) as lease:
            sample.last = lease.replica_id
            async for event in lease.events:
                match event:
                    case Stepped(step, num_steps):
                        self._advance(sample, step)
                        await self._progress(sample.index, step, num_steps)
                    case Checkpointed():
                        self._keep(sample, event)
                    case Previewed(preview_index, estimate):
                        await self._preview(sample.index, preview_index, estimate, sample.spec)
                    case Leased(step, data, spent):
                        self._keep(sample, Checkpointed(step, data))
                        self._spend(sample.index, spent)
                        return None
                    case Denoised(latents, spent):
                        self._spend(sample.index, spent)
                        num_steps = sample.spec.num_inference_steps
                        self._advance(sample, num_steps)
                        await self._progress(sample.index, num_steps, num_steps)
                        return latents
        raise GenerationFailed(f"the denoiser ended sample {sample.index} without a result")

    def _keep(self, sample: Underway, checkpoint: Checkpointed) -> None:
        sample.checkpoint = checkpoint
        self._advance(sample, checkpoint.step)
        if self._recovery.keeping is not None:
            self._recovery.keeping.keep(sample.index, checkpoint)

    def _advance(self, sample: Underway, step: int) -> None:
        sample.patience = None
        sample.place = max(sample.place, step)
        self._recovery.advanced(sample.index)
        if not self._recovery.is_suspect(sample.index, sample.place):
            sample.clear()

    def _spend(self, index: int, spent: Spent) -> None:
        self._denoise_s[index] += spent.seconds
        self._time("denoise_s", self._denoise_s[index])
        self.gpu_seconds["denoise"] += spent.gpu_seconds
        self.busy_s[index] += spent.busy_s
        self.decisions.update(spent.decisions)

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
        self.gpu_seconds["decode"] += sum(decoded.timings.get(name, 0.0) for name in ("decode_s", "decode_audio_s"))
        return decoded.artifact

    async def _progress(self, index: int, step: int, num_steps: int) -> None:
        self._done[index] = max(self._done[index], step / num_steps)
        percent = int(PROGRESS_AT_DENOISED * sum(self._done) / len(self._done))
        data = {"index": index, "step": step, "num_steps": num_steps, "progress": percent, "stage": "denoise"}
        self._feed.publish("progress", data)
        if percent > self._saved[0] and time.monotonic() - self._saved[1] >= SAVE_S:
            self._saved = percent, time.monotonic()
            await self._save_progress(percent)

    def _time(self, stage: str, seconds: float) -> None:
        self._timings[stage] = max(self._timings.get(stage, 0.0), seconds)
