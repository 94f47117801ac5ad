"""What the HTTP API and the Python handle both stand on: accept a job, follow it, fetch what it made. No torch.

It runs in every ingress replica. It reads and writes the jobs table and the artifact store directly, and talks to the
dispatchers (one per model) through Serve handles; it never sees a tensor.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from raydiance.models.card import ModelCard
from raydiance.models.spec import FieldError, Spec
from raydiance.serve import clips, media
from raydiance.serve.background import finish
from raydiance.serve.config import Config
from raydiance.serve.engine.policies.base import meaning_of
from raydiance.serve.errors import Conflict, InvalidRequest, NotFound, TooManyRequests, Unavailable
from raydiance.serve.events import Event
from raydiance.serve.inputs import store_inputs
from raydiance.serve.pricer import Quote
from raydiance.serve.request import GenerationRequest
from raydiance.serve.samples import follow_video, resolve
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.job import DEFAULT_TENANT, Artifact, Job, JobState, artifact_prefix, new_job_id, now
from raydiance.serve.storage.jobs import JobStore
from raydiance.serve.tenants import Tenants, tier_of

log = logging.getLogger("ray.serve")
T = TypeVar("T")
LOST = (RayActorError, DeploymentUnavailableError, BackPressureError)
RECONNECT_S = 0.5
SHEET_FRAMES = 25
DERIVED: dict[str, tuple[str, str, Callable[[bytes, int], bytes]]] = {
    "thumbnail": ("webp", "image/webp", lambda video, count: media.thumbnail(clips.pick(video, [count // 2]))),
    "spritesheet": ("jpg", "image/jpeg", lambda video, count: media.spritesheet(clips.pick(video, _spread(count)))),
}


class DispatcherHandle(Protocol):
    """The calls of `serve.dispatcher.Dispatcher`, over whatever carries them."""

    async def card(self) -> ModelCard | None: ...
    async def quote(self, request: GenerationRequest, specs: list[dict[str, Any]]) -> Quote: ...
    async def admit(self, job_id: str, request: GenerationRequest, specs: list[dict[str, Any]]) -> Quote: ...
    async def withdraw(self, job_id: str) -> None: ...
    async def why(self, job_id: str) -> str | None: ...
    async def enqueue(self, job_id: str) -> None: ...
    async def cancel(self, job_id: str) -> None: ...
    def events(self, job_id: str, after: int) -> AsyncIterator[list[Event]]: ...


class Service:
    """Where a method takes a `tenant`, another's job is as one that does not exist; None is the operator, who sees all.

    Args:
        dispatchers: by model name; the first is the default model.
    """

    def __init__(
        self, config: Config, dispatchers: Mapping[str, DispatcherHandle], jobs: JobStore, artifacts: ArtifactStore
    ) -> None:
        self.config = config
        self.jobs = jobs
        self.artifacts = artifacts
        self.tenants = Tenants(config, jobs)
        self._dispatchers = dict(dispatchers)
        self._cards: dict[str, ModelCard] = {}

    async def ready(self) -> bool:
        """Whether every model has finished its warm-up generation."""
        return all([await self._card(name) is not None for name in self._dispatchers])

    async def models(self) -> list[ModelCard]:
        """The cards of the models that are ready."""
        cards = [await self._card(name) for name in self._dispatchers]
        return [c for c in cards if c is not None]

    async def card(self, model: str | None) -> ModelCard:
        """Raises NotFound for an unknown model, Unavailable while it warms up."""
        name = model or next(iter(self._dispatchers))
        if name not in self._dispatchers:
            known = ", ".join(self._dispatchers)
            raise NotFound(f"model '{name}' is not served here; there is {known}", "model", "model_not_found")
        card = await self._card(name)
        if card is None:
            raise Unavailable(f"model '{name}' is still warming up; try again in a few seconds")
        return card

    async def _card(self, name: str) -> ModelCard | None:
        if name not in self._cards:
            try:
                card = await self._dispatchers[name].card()
            except LOST:
                return None
            if card is None:
                return None
            self._cards[name] = card
        return self._cards[name]

    async def submit(
        self,
        request: GenerationRequest,
        *,
        tenant: str | None,
        idempotency_key: str | None = None,
        remixed_from: str | None = None,
    ) -> Job:
        """Checks everything, stores the inputs and the job, and tells the dispatcher.

        Once begun it is done to its end: a caller that goes away leaves a whole job or none, never half of one.

        Raises InvalidRequest (naming the field and the limit), NotFound, Conflict (an idempotency key that came with
        another body), Forbidden and TooManyRequests (by the tenant's limits), Unavailable.
        """
        return await finish(self._submit(request, tenant, idempotency_key, remixed_from))

    async def _submit(
        self, request: GenerationRequest, tenant: str | None, idempotency_key: str | None, remixed_from: str | None
    ) -> Job:
        card = await self.card(request.model)
        seed = secrets.randbelow(2**31) if request.seed is None else request.seed
        specs = _resolve(request, card, seed)
        if request.webhook is not None and self.config.webhooks.secret is None:
            raise InvalidRequest("webhook is refused: this server has no webhooks.secret to sign with", "webhook")
        body_hash = hashlib.sha256(request.model_dump_json().encode()).hexdigest() if idempotency_key else None
        if idempotency_key:
            owner = tenant or DEFAULT_TENANT
            earlier = await asyncio.to_thread(self.jobs.find_by_key, idempotency_key, body_hash, owner)
            if earlier is not None:
                return earlier
        await self._check_room()
        kind: Literal["image", "video"] = "video" if specs[0].is_video else "image"
        job_id = new_job_id(kind)
        quote = await self._admit(job_id, card.id, request, specs)
        accepted = False
        try:
            ask = await self.tenants.admit(tenant, card.id, tier_of(request), len(specs), quote.gpu_seconds)
            stored = await store_inputs(
                request,
                prefix=artifact_prefix(job_id),
                limits=self.config.limits,
                network=self.config.network,
                artifacts=self.artifacts,
                allow_artifacts=remixed_from is not None,
            )
            specs = _resolve(stored, card, seed)  # now that a given video is known
            job = Job(
                id=job_id,
                kind=kind,
                model=card.id,
                request=stored.model_copy(update={"seed": seed, "model": card.id}),
                specs=[s.to_dict() for s in specs],
                created_at=now(),
                remixed_from=remixed_from,
                tenant=tenant or DEFAULT_TENANT,
                group_id=request.group,
            )
            stored_job = await asyncio.to_thread(
                lambda: self.jobs.create(job, idempotency_key=idempotency_key, body_hash=body_hash, ask=ask)
            )
            accepted = stored_job.id == job_id
        finally:
            if not accepted:  # refused, or answered by an earlier job of the same key
                await self._withdraw(card.id, job_id)
                await self.artifacts.delete_prefix(artifact_prefix(job_id))
        if accepted:
            await self._tell(job)
        return stored_job

    async def quote(self, request: GenerationRequest) -> dict[str, Any]:
        """What a request would take, and when it would be done; nothing is done. Raises as `submit` for its fields."""
        card = await self.card(request.model)
        specs = _resolve(request, card, 0 if request.seed is None else request.seed)
        quote = await self._ask(card.id, lambda it: it.quote(request, [spec.to_dict() for spec in specs]))
        return quote.public(self.config.auth.gpu_second_price) | {"model": card.id, "n": len(specs)}

    async def why(self, job_id: str, *, tenant: str | None) -> dict[str, Any]:
        """Where a job is, what it waits for, and how often what was decided of its samples. Raises NotFound."""
        job = await self.get(job_id, tenant=tenant)
        waits = None
        if not job.state.is_final and job.model in self._dispatchers:
            waits = await self._ask(job.model, lambda it: it.why(job_id))
        decisions = [{"decision": name, "meaning": meaning_of(name), "count": n} for name, n in job.decisions.items()]
        return {"id": job.id, "object": "job.why", "status": job.state.value, "waits": waits, "decisions": decisions}

    async def _check_room(self) -> None:
        limit = self.config.limits.max_queued_jobs
        if await asyncio.to_thread(self.jobs.count_unfinished) >= limit:
            raise TooManyRequests(f"{limit} jobs are waiting already (limits.max_queued_jobs)", retry_after_s=5)

    async def _admit(self, job_id: str, model: str, request: GenerationRequest, specs: Sequence[Spec]) -> Quote:
        """Raises TooManyRequests where it cannot be done in time, Unavailable."""
        quote = await self._ask(model, lambda it: it.admit(job_id, request, [spec.to_dict() for spec in specs]))
        if not quote.is_admitted:
            goal, late = quote.target, quote.finish - quote.target.due
            what = "deadline_s" if goal.deadline < goal.slo else "slo_s"
            raise TooManyRequests(
                f"it would be done {max(late, 0):.1f} s too late, or make others late: {what} and service_tier "
                f"'{goal.tier}' leave {goal.due - now():.1f} s, {quote.starts_in_s:.1f} s of work come first, and it "
                f"takes {quote.latency_s:.1f} s alone",
                quote.retry_after_s,
            )
        return quote

    async def _withdraw(self, model: str, job_id: str) -> None:
        try:
            await self._dispatchers[model].withdraw(job_id)
        except LOST as e:
            log.warning("dispatcher of '%s' is away, and forgets job %s by itself: %s", model, job_id, e)

    async def _ask(self, model: str, question: Callable[[DispatcherHandle], Awaitable[T]]) -> T:
        try:
            return await question(self._dispatchers[model])
        except LOST as e:
            raise Unavailable(f"the dispatcher of '{model}' is away; try again in a few seconds") from e

    async def _tell(self, job: Job) -> None:
        try:
            await self._dispatchers[job.model].enqueue(job.id)
        except LOST as e:
            # the job is in the table: the dispatcher takes up what is unfinished when it is back
            log.warning("dispatcher of '%s' is away; job %s waits in the table: %s", job.model, job.id, e)

    async def get(self, job_id: str, *, tenant: str | None) -> Job:
        """Raises NotFound."""
        return await asyncio.to_thread(self.jobs.get, job_id, tenant)

    async def list(
        self,
        *,
        tenant: str | None,
        kind: str | None = None,
        after: str | None = None,
        limit: int = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> tuple[list[Job], bool]:
        """One page, and whether there is more. Raises NotFound for an unknown `after`."""
        return await asyncio.to_thread(
            lambda: self.jobs.list(tenant=tenant, kind=kind, after=after, limit=limit, order=order)
        )

    async def cancel(self, job_id: str, *, tenant: str | None) -> Job:
        """The denoiser drops it within one step. A finished job stays as it is."""
        job = await self.get(job_id, tenant=tenant)
        if job.state.is_final:
            return job
        try:
            job = await asyncio.to_thread(self.jobs.cancel, job_id)
        except Conflict:
            return await self.get(job_id, tenant=tenant)  # it finished in between
        if job.model in self._dispatchers:
            try:
                await self._dispatchers[job.model].cancel(job_id)
            except LOST as e:
                log.warning("dispatcher of '%s' is away; job %s is cancelled in the table: %s", job.model, job_id, e)
        return job

    async def delete(self, job_id: str, *, tenant: str | None) -> Job:
        """Cancels it if need be, then removes the job and its files."""
        job = await self.cancel(job_id, tenant=tenant)
        await self.artifacts.delete_prefix(artifact_prefix(job_id))
        await asyncio.to_thread(self.jobs.delete, job_id)
        return job

    async def events(self, job_id: str, after: int = 0, *, tenant: str | None) -> AsyncIterator[Event]:
        """Events with an id above `after`, to the final one. Survives the dispatcher's death. Raises NotFound."""
        while True:
            job = await self.get(job_id, tenant=tenant)
            dispatcher = self._dispatchers.get(job.model)
            if dispatcher is not None:
                try:  # an ended job too: what happened just now, previews among it, is still to be had
                    async for batch in dispatcher.events(job_id, after):
                        for event in batch:
                            after = max(after, event.id)
                            yield event
                            if event.is_final:
                                return
                except (*LOST, RayTaskError) as e:
                    log.warning("events of job %s were cut, connecting again: %s", job_id, e)
            if job.state.is_final:
                yield final_event(job, after)
                return
            if dispatcher is None:
                raise Unavailable(f"job {job_id} waits for model '{job.model}', which is not served here now")
            await asyncio.sleep(RECONNECT_S)

    async def wait(self, job_id: str, *, tenant: str | None) -> Job:
        """Returns the job when it has ended."""
        async for event in self.events(job_id, tenant=tenant):
            if event.is_final:
                break
        return await self.get(job_id, tenant=tenant)

    async def artifact(self, job_id: str, index: int = 0, variant: str = "content", *, tenant: str | None) -> Artifact:
        """Raises NotFound (no such job or sample), Conflict (not finished)."""
        job = await self.get(job_id, tenant=tenant)
        if not job.state.is_final:
            raise Conflict(
                f"job {job_id} is {job.state.value} ({job.progress}%); its content comes when it completes", "id"
            )
        if job.state is not JobState.COMPLETED:
            raise NotFound(f"job {job_id} is {job.state.value} and has no content", "id")
        found = job.find(index, variant)
        if found is None and job.kind == "video" and (content := job.find(index)) is not None:
            found = await self._derive(content, variant)
        if found is None:
            held = f"it has {len(job.specs)} sample(s)"
            raise NotFound(f"job {job_id} has no {variant} of index {index}; {held}", "index")
        return found

    async def _derive(self, content: Artifact, variant: str) -> Artifact | None:
        """A thumbnail or sprite sheet, made from the video when it is first asked for."""
        if variant not in DERIVED:
            return None
        suffix, content_type, make = DERIVED[variant]
        key = f"{content.key.rsplit('.', 1)[0]}-{variant}.{suffix}"
        try:
            size_bytes = await self.artifacts.size(key)
        except NotFound:
            video = await self.artifacts.get(content.key)
            data = await asyncio.to_thread(make, video, content.num_frames)
            await self.artifacts.put(key, data)
            size_bytes = len(data)
        update = {"key": key, "variant": variant, "content_type": content_type, "size_bytes": size_bytes}
        return content.model_copy(update={**update, "num_frames": 1, "fps": None})


def _spread(count: int) -> list[int]:
    """Up to `SHEET_FRAMES` of `count` frames, evenly from the first to the last."""
    shown = min(count, SHEET_FRAMES)
    return [round(i * (count - 1) / max(shown - 1, 1)) for i in range(shown)]


def _resolve(request: GenerationRequest, card: ModelCard, seed: int) -> list[Spec]:
    try:
        return resolve(follow_video(request, card), card, seed)
    except FieldError as e:
        raise InvalidRequest(e.message, e.field) from e


def final_event(job: Job, after: int = 0) -> Event:
    """The last event of an ended job, for those who come late."""
    state = job.state
    kind: Literal["completed", "failed", "cancelled"] = (
        "completed" if state is JobState.COMPLETED else "cancelled" if state is JobState.CANCELLED else "failed"
    )
    data: dict[str, Any] = job.public()
    return Event(id=after + 1, type=kind, job_id=job.id, data=data)
