"""Groups of jobs, such as an agent's round: one deadline and one budget for all, accepted and cancelled together."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

from raydiance.models.tier import Tier
from raydiance.serve.background import finish
from raydiance.serve.errors import Forbidden, InvalidRequest, NotFound, RaydianceError
from raydiance.serve.intake import Draft, Intake, with_terms
from raydiance.serve.pricer import Quote
from raydiance.serve.quota import Ask, fits
from raydiance.serve.request import GenerationRequest
from raydiance.serve.roster import Roster
from raydiance.serve.storage import usage
from raydiance.serve.storage.groups import Group, Totals, budget_exceeded
from raydiance.serve.storage.job import DEFAULT_TENANT, Job, now
from raydiance.serve.storage.jobs import JobStore
from raydiance.serve.tenants import Tenants, tier_of

AT_ONCE = 8
Wanted = GenerationRequest | RaydianceError
"""A request, or what is wrong with what was sent in place of one."""
T = TypeVar("T")


class Cancel(Protocol):
    async def __call__(self, job_id: str, *, tenant: str | None) -> Job: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one request of a new group: its job, or why it has none."""

    job: Job | None = None
    error: RaydianceError | None = None


class JobGroups:
    """Where a method takes a `tenant`, another's group is as one that does not exist; None is the operator."""

    def __init__(self, intake: Intake, roster: Roster, tenants: Tenants, jobs: JobStore, cancel: Cancel) -> None:
        self._intake = intake
        self._roster = roster
        self._tenants = tenants
        self._jobs = jobs
        self._cancel = cancel

    async def create(
        self,
        requests: Sequence[Wanted],
        *,
        tenant: str | None,
        group_id: str | None = None,
        atomic: bool = False,
        service_tier: Tier | None = None,
        slo_s: float | None = None,
        deadline_s: float | None = None,
        max_gpu_seconds: float | None = None,
    ) -> tuple[Group, list[Outcome]]:
        """A new group and, in the order of its requests, what became of them.

        Args:
            atomic: all requests are accepted or none; what one of them is refused for is raised, and nothing is left.
            service_tier, slo_s, deadline_s, max_gpu_seconds: see `Group`.

        Raises Conflict for an id that the tenant has used; for an atomic one what `Service.submit` does.
        """
        name = group_id or f"group_{uuid.uuid4().hex}"
        owner = tenant or DEFAULT_TENANT
        group = Group(name, owner, now(), service_tier, slo_s, deadline_s, max_gpu_seconds)
        joined = [_joined(wanted, name) for wanted in requests]
        made = self._all_or_none(group, joined, tenant) if atomic else self._each(group, joined, tenant)
        return group, await finish(made)

    async def _each(self, group: Group, requests: Sequence[Wanted], tenant: str | None) -> list[Outcome]:
        """One after the other, so that a budget goes to the first of them."""
        await asyncio.to_thread(self._jobs.create_group, group)
        outcomes = []
        for wanted in requests:
            try:
                outcomes.append(Outcome(await self._intake.submit(_sound(wanted), tenant, None, None)))
            except RaydianceError as e:
                outcomes.append(Outcome(error=e))
        return outcomes

    async def _all_or_none(self, group: Group, requests: Sequence[Wanted], tenant: str | None) -> list[Outcome]:
        drafts: list[Draft] = []
        for i, wanted in enumerate(requests):
            with _named(i):
                drafts.append(await self._intake.draft(_sound(wanted)))
        await self._intake.check_room(len(drafts))
        accepted = False
        try:
            quotes = await _of_each([partial(self._intake.reserve, draft, group) for draft in drafts])
            asks = await self._asks(group, drafts, quotes, tenant)
            jobs = await _of_each([partial(self._intake.store, draft, group, tenant) for draft in drafts])
            await asyncio.to_thread(self._jobs.create_group, group, list(zip(jobs, asks, strict=True)))
            accepted = True
        finally:
            if not accepted:
                for draft in drafts:
                    await self._intake.drop(draft)
        for job in jobs:
            await self._roster.tell(job)
        return [Outcome(job) for job in jobs]

    async def _asks(
        self, group: Group, drafts: Sequence[Draft], quotes: Sequence[Quote], tenant: str | None
    ) -> list[Ask]:
        """What each is charged. Raises Forbidden, TooManyRequests where the tenant may not have all of them."""
        total_s, num_samples = math.fsum(q.gpu_seconds for q in quotes), sum(len(d.specs) for d in drafts)
        if group.max_gpu_seconds is not None and not fits(0.0, total_s, group.max_gpu_seconds):
            raise budget_exceeded(group, 0.0, 0.0, total_s, 0.0)
        kinds = [(d.card.id, tier_of(with_terms(d.request, group, group.created_at))) for d in drafts]
        asked: dict[tuple[str, str], Ask] = {}
        for model, tier in dict.fromkeys(kinds):
            try:
                asked[model, tier] = await self._tenants.admit(tenant, model, tier, num_samples, total_s)
            except Forbidden as e:
                e.param = "requests" if e.param == "n" else e.param
                raise
        return [
            replace(asked[kind], num_samples=len(draft.specs), gpu_seconds=quote.gpu_seconds, group=group.id)
            for kind, draft, quote in zip(kinds, drafts, quotes, strict=True)
        ]

    async def show(
        self,
        group_id: str,
        *,
        tenant: str | None,
        after: str | None = None,
        limit: int = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> dict[str, Any]:
        """The group as clients see it, with a page of its jobs' ids. Raises NotFound."""
        group = await self.get(group_id, tenant=tenant)
        totals = await asyncio.to_thread(self._jobs.group_totals, group)
        jobs, more = await asyncio.to_thread(
            lambda: self._jobs.list(tenant=group.tenant, group=group.id, after=after, limit=limit, order=order)
        )
        ids = [job.id for job in jobs]
        page = {"data": ids, "has_more": more, "first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
        return public(group, totals) | {"jobs": page}

    async def get(self, group_id: str, *, tenant: str | None) -> Group:
        """Raises NotFound."""
        return await asyncio.to_thread(self._jobs.group, group_id, tenant)

    async def cancel(self, group_id: str, *, tenant: str | None) -> Group:
        """All of its unfinished jobs, each within one step. Raises NotFound."""
        return await finish(self._cancel_all(await self.get(group_id, tenant=tenant)))

    async def _cancel_all(self, group: Group) -> Group:
        async def cancel(job_id: str) -> None:
            with suppress(NotFound):  # deleted meanwhile
                await self._cancel(job_id, tenant=group.tenant)

        unfinished = await asyncio.to_thread(self._jobs.unfinished_of, group)
        await _all([partial(cancel, job_id) for job_id in unfinished])
        return group


def public(group: Group, totals: Totals) -> dict[str, Any]:
    """As clients see it, without its jobs. Pure."""
    used_s, limit_s = sum(totals.gpu_seconds.values()), group.max_gpu_seconds
    left_s = None if limit_s is None else round(max(limit_s - used_s - totals.expected_s, 0.0), 4)
    return {
        "id": group.id,
        "object": "group",
        "tenant": group.tenant,
        "created_at": int(group.created_at),
        "service_tier": group.service_tier,
        "slo_s": group.slo_s,
        "deadline_s": group.deadline_s,
        "deadline": None if group.deadline_s is None else round(group.deadline, 3),
        "max_gpu_seconds": limit_s,
        "expected_gpu_seconds": round(totals.expected_s, 4),
        "gpu_seconds_left": left_s,
        "counts": totals.counts,
        "usage": usage.public(totals.gpu_seconds, totals.cost),
    }


async def _of_each(works: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """One work a request of a group; see `_all`."""

    async def run(i: int, work: Callable[[], Awaitable[T]]) -> T:
        with _named(i):
            return await work()

    return await _all([partial(run, i, work) for i, work in enumerate(works)])


async def _all(works: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Some at a time; all have ended when it returns. Of failures it raises one that no waiting helps, or else the one
    that lasts longest."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def run(work: Callable[[], Awaitable[T]]) -> T:
        async with gate:
            return await work()

    ended = await asyncio.gather(*map(run, works), return_exceptions=True)
    if failures := [end for end in ended if isinstance(end, BaseException)]:
        raise max(failures, key=lambda e: getattr(e, "retry_after_s", math.inf))
    return [end for end in ended if not isinstance(end, BaseException)]


@contextmanager
def _named(index: int) -> Iterator[None]:
    """Errors say which of the requests they are of."""
    try:
        yield
    except RaydianceError as e:
        place = f"requests.{index}"
        e.message = f"{place}: {e.message}"
        e.param = place if e.param is None else f"{place}.{e.param}"
        raise


def _joined(wanted: Wanted, group_id: str) -> Wanted:
    if isinstance(wanted, RaydianceError):
        return wanted
    if wanted.group not in (None, group_id):
        return InvalidRequest(f"group='{wanted.group}' is another than this one", "group")
    return wanted.model_copy(update={"group": group_id})


def _sound(wanted: Wanted) -> GenerationRequest:
    if isinstance(wanted, RaydianceError):
        raise wanted
    return wanted
