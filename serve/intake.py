"""From a request to an accepted job: checked, priced, let in, its inputs stored, written, and told of. No torch."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, Literal

from raydiance.models.card import ModelCard
from raydiance.models.spec import FieldError, Spec
from raydiance.serve.config import Config
from raydiance.serve.errors import Conflict, InvalidRequest, TooManyRequests
from raydiance.serve.inputs import store_inputs
from raydiance.serve.pricer import Quote
from raydiance.serve.quota import Ask
from raydiance.serve.refusals import Refusals
from raydiance.serve.request import GenerationRequest
from raydiance.serve.roster import Roster
from raydiance.serve.samples import follow_video, resolve
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.groups import Group
from raydiance.serve.storage.job import DEFAULT_TENANT, Job, artifact_prefix, new_job_id, now
from raydiance.serve.storage.jobs import JobStore
from raydiance.serve.tenants import Tenants, tier_of

FULL_RETRY_S = 5.0
COUNT_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Draft:
    """A request that the model can honour, on its way to become a job.

    Args:
        request: as it came, without what it inherits of its group.
    """

    job_id: str
    card: ModelCard
    request: GenerationRequest
    specs: list[Spec]
    seed: int

    @property
    def kind(self) -> Literal["image", "video"]:
        return "video" if self.specs[0].is_video else "image"

    @property
    def values(self) -> list[dict[str, Any]]:
        """The specs, as they go to a dispatcher."""
        return [spec.to_dict() for spec in self.specs]

    def kind_on(self, terms: GenerationRequest) -> Hashable:
        """What it takes, and by when it is wanted: requests that agree in it are let in or refused alike.

        Args:
            terms: the request with what it inherits of its group.
        """
        one = self.specs[0]
        size = one.task, one.height, one.width, one.num_frames, one.num_inference_steps, one.first_step, one.audio
        extra = tuple(sorted((name, str(value)) for name, value in one.extra.items()))
        wanted = terms.service_tier, terms.slo_s, terms.deadline_s
        return size, one.guidance_scale, extra, len(self.specs), wanted


def with_terms(request: GenerationRequest, group: Group | None, at: float) -> GenerationRequest:
    """With what it inherits of its group at `at` (Unix seconds): tier and SLO where it gives none, the sooner deadline.

    Raises Conflict where the group's deadline has passed. Pure.
    """
    if group is None:
        return request
    terms: dict[str, Any] = {
        "service_tier": request.service_tier or group.service_tier,
        "slo_s": group.slo_s if request.slo_s is None else request.slo_s,
    }
    if group.deadline_s is not None:
        left_s = round(group.deadline - at, 3)
        if left_s <= 0:
            passed = f"the deadline of group '{group.id}' passed {-left_s:.1f} s ago"
            raise Conflict(passed, "group", "group_deadline_passed")
        terms["deadline_s"] = left_s if request.deadline_s is None else min(request.deadline_s, left_s)
    return request.model_copy(update=terms)


def too_late(quote: Quote, at: float) -> TooManyRequests:
    """What is told of a request that cannot be done in time, at `at` (Unix seconds)."""
    goal, late_s = quote.target, quote.finish - quote.target.due
    what = "deadline_s" if goal.deadline < goal.slo else "slo_s"
    return TooManyRequests(
        f"it would be done {max(late_s, 0):.1f} s too late, or make others late: {what} and service_tier "
        f"'{goal.tier}' leave {goal.due - at:.1f} s, {quote.starts_in_s:.1f} s of work come first, and it "
        f"takes {quote.latency_s:.1f} s alone",
        quote.retry_after_s,
    )


class Intake:
    """Where a method takes a `tenant`, None is the operator, whom no tenant's limits hold."""

    def __init__(
        self, config: Config, roster: Roster, tenants: Tenants, jobs: JobStore, artifacts: ArtifactStore
    ) -> None:
        self._config = config
        self._roster = roster
        self._tenants = tenants
        self._jobs = jobs
        self._artifacts = artifacts
        self._refusals = Refusals()
        self._num_unfinished = 0
        self._count_again_at = 0.0

    async def submit(
        self, request: GenerationRequest, tenant: str | None, idempotency_key: str | None, remixed_from: str | None
    ) -> Job:
        """See `Service.submit`."""
        draft = await self.draft(request)
        body_hash = hashlib.sha256(request.model_dump_json().encode()).hexdigest() if idempotency_key else None
        if idempotency_key:
            owner = tenant or DEFAULT_TENANT
            earlier = await asyncio.to_thread(self._jobs.find_by_key, idempotency_key, body_hash, owner)
            if earlier is not None:
                return earlier
        await self.check_room()
        group = await self._group_of(request, tenant)
        quote = await self.reserve(draft, group)
        accepted = False
        try:
            ask = await self._ask(draft, group, quote, tenant)
            job = await self.store(draft, group, tenant, remixed_from)
            stored = await asyncio.to_thread(
                lambda: self._jobs.create(job, idempotency_key=idempotency_key, body_hash=body_hash, ask=ask)
            )
            accepted = stored.id == job.id
        finally:
            if not accepted:  # refused, or answered by an earlier job of the same key
                await self.drop(draft)
        if accepted:
            self._num_unfinished += 1
            await self._roster.tell(job)
        return stored

    async def quote(self, request: GenerationRequest, tenant: str | None) -> dict[str, Any]:
        """See `Service.quote`."""
        draft = await self.draft(request)
        group, at = await self._group_of(request, tenant), now()
        terms = with_terms(request, group, at)
        quote = await self._roster.ask(draft.card.id, lambda it: it.quote(terms, draft.values))
        refusals = [] if quote.is_admitted else [too_late(quote, at)]
        try:
            await self.check_room()
            await self._ask(draft, group, quote, tenant)
        except TooManyRequests as e:
            refusals.append(e)
        last = max(refusals, key=lambda e: e.retry_after_s, default=None)
        quote = replace(quote, retry_after_s=0.0 if last is None else last.retry_after_s)
        return quote.public(self._config.auth.gpu_second_price) | {
            "model": draft.card.id,
            "n": len(draft.specs),
            "group": request.group,
            "refusal": None if last is None else last.message,
        }

    async def draft(self, request: GenerationRequest) -> Draft:
        """Raises NotFound (no such model), InvalidRequest, Unavailable."""
        card = await self._roster.card(request.model)
        seed = secrets.randbelow(2**31) if request.seed is None else request.seed
        specs = _resolve(request, card, seed)
        if request.webhook is not None and self._config.webhooks.secret is None:
            raise InvalidRequest("webhook is refused: this server has no webhooks.secret to sign with", "webhook")
        return Draft(new_job_id("video" if specs[0].is_video else "image"), card, request, specs, seed)

    async def check_room(self, num_jobs: int = 1) -> None:
        """Raises TooManyRequests where so many jobs more are too many. They are counted a few times a second."""
        limit = self._config.limits.max_queued_jobs
        if time.monotonic() >= self._count_again_at:
            self._num_unfinished = await asyncio.to_thread(self._jobs.count_unfinished)
            self._count_again_at = time.monotonic() + COUNT_EVERY_S
        if self._num_unfinished + num_jobs > limit:
            raise TooManyRequests(f"{limit} jobs may wait (limits.max_queued_jobs), and they do", FULL_RETRY_S)

    async def reserve(self, draft: Draft, group: Group | None) -> Quote:
        """Room at the denoisers is kept for it from now on, until it is stored and told of, or dropped.

        Raises TooManyRequests where it cannot be done in time, Conflict where its group's deadline has passed,
        Unavailable.
        """
        at = now()
        terms = with_terms(draft.request, group, at)
        model, kind = draft.card.id, draft.kind_on(terms)
        async with self._refusals.asking(model, kind):
            quote = await self._roster.ask(model, lambda it: it.admit(draft.job_id, terms, draft.values))
            if not quote.is_admitted:
                self._refusals.keep(model, kind, refusal := too_late(quote, at))
                raise refusal
        return quote

    def freed(self, model: str) -> None:
        """A job of it is given up: what was refused may be let in."""
        self._refusals.forget(model)
        self._count_again_at = 0.0

    async def store(
        self, draft: Draft, group: Group | None, tenant: str | None, remixed_from: str | None = None
    ) -> Job:
        """The job that it becomes, not yet written; its inputs are stored. Raises as `store_inputs`, InvalidRequest."""
        stored = await store_inputs(
            draft.request,
            prefix=artifact_prefix(draft.job_id),
            limits=self._config.limits,
            network=self._config.network,
            artifacts=self._artifacts,
            allow_artifacts=remixed_from is not None,
        )
        specs, at = _resolve(stored, draft.card, draft.seed), now()  # now that a given video is known
        return Job(
            id=draft.job_id,
            kind=draft.kind,
            model=draft.card.id,
            request=with_terms(stored, group, at).model_copy(update={"seed": draft.seed, "model": draft.card.id}),
            specs=[spec.to_dict() for spec in specs],
            created_at=at,
            remixed_from=remixed_from,
            tenant=tenant or DEFAULT_TENANT,
            group_id=draft.request.group,
        )

    async def drop(self, draft: Draft) -> None:
        """Nothing is left of it."""
        await self._roster.withdraw(draft.card.id, draft.job_id)
        self.freed(draft.card.id)
        await self._artifacts.delete_prefix(artifact_prefix(draft.job_id))

    async def _ask(self, draft: Draft, group: Group | None, quote: Quote, tenant: str | None) -> Ask:
        tier = tier_of(with_terms(draft.request, group, now()))
        return await self._tenants.admit(
            tenant, draft.card.id, tier, len(draft.specs), quote.gpu_seconds, draft.request.group
        )

    async def _group_of(self, request: GenerationRequest, tenant: str | None) -> Group | None:
        """None also for one that begins with this request."""
        if request.group is None:
            return None
        return await asyncio.to_thread(self._jobs.find_group, request.group, tenant or DEFAULT_TENANT)


def _resolve(request: GenerationRequest, card: ModelCard, seed: int) -> list[Spec]:
    try:
        return resolve(follow_video(request, card), card, seed)
    except FieldError as e:
        raise InvalidRequest(e.message, e.field) from e
