"""What tenants have used and may use. A charge is made in the transaction that accepts a job, and settled in the one
that ends it, so that quotas hold over all models and processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal

from sqlalchemy import ColumnElement, delete, func, null, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from raydiance.serve.quota import MINUTE_S, Ask, Counters, Limits, month_start, refusal
from raydiance.serve.storage import usage
from raydiance.serve.storage.database import Database
from raydiance.serve.storage.groups import book_in_group, check_budget, join_group
from raydiance.serve.storage.job import DEFAULT_TENANT, now
from raydiance.serve.storage.keys import limits_of
from raydiance.serve.storage.tables import ChargeRow, JobRow, UsageRow
from raydiance.serve.storage.usage import STAGES, Used

CORRECTED_FOR_S = 3600  # how long after a job's end what it used may still be told
Group = Literal["tenant", "model", "day"]
GROUPS: Final[tuple[Group, ...]] = ("tenant", "model", "day")


class Ledger(Database):
    def check(self, ask: Ask) -> None:
        """Whether a request would be let in now; the check that counts is made when its job is stored.

        Raises:
            Forbidden: by its tenant's limits it never is.
            TooManyRequests: not now, or not within its group's budget; carries when to come again.
        """
        with self._reading() as session:
            if ask.tenant is not None:
                _check(session, ask, now())
            if ask.group is not None:
                check_budget(session, ask.tenant or DEFAULT_TENANT, ask.group, ask.gpu_seconds, now())

    def charge(self, job_id: str, gpu_seconds: Mapping[str, float]) -> None:
        """What an ended job has used, by stage, in place of what was known at its end: of a job that was cancelled,
        this is known only when its stages have stopped. Ignored for an unfinished job, and an hour after the end.

        Raises:
            ValueError: an unknown stage, or less than nothing.
        """
        used = usage.by_stage(gpu_seconds)
        with self._writing() as session:
            charge = session.get(ChargeRow, job_id, with_for_update=True)
            if charge is not None and charge.settled_at is not None:
                _book(session, charge, used)
                if (job := session.get(JobRow, job_id)) is not None:
                    job.gpu_seconds, job.cost = used, sum(used.values()) * charge.price

    def usage(
        self, *, start: str, end: str, tenant: str | None = None, group_by: Sequence[Group] = GROUPS
    ) -> list[Used]:
        """Sums over the jobs that ended from day `start` to day `end` (YYYY-MM-DD, UTC), both among them.

        Args:
            tenant: None for all.
        """
        groups = [getattr(UsageRow, name) if name in group_by else null().label(name) for name in GROUPS]
        columns = [getattr(UsageRow, name) for name in ("requests", *STAGES, "cost")]
        query = select(*groups, *(func.sum(column) for column in columns)).where(UsageRow.day.between(start, end))
        if tenant is not None:
            query = query.where(UsageRow.tenant == tenant)
        if group_by:
            by = [getattr(UsageRow, name) for name in GROUPS if name in group_by]
            query = query.group_by(*by).order_by(*by)
        with self._reading() as session:
            rows = [tuple(row) for row in session.execute(query)]
        return [
            Used(who, model, day, int(requests), dict(zip(STAGES, seconds, strict=True)), cost)
            for who, model, day, requests, *seconds, cost in rows
            if requests is not None  # a sum over nothing
        ]

    def forget_charges(self, at: float) -> None:
        """Those that count no longer at `at` (Unix seconds). Usage stays."""
        with self._writing() as session:
            session.execute(delete(ChargeRow).where(ChargeRow.settled_at < int(at) - CORRECTED_FOR_S))

    def _accept(self, session: Session, job_id: str, tenant: str, ask: Ask) -> None:
        """Charges a job that is being stored. Raises Forbidden, TooManyRequests."""
        at = now()
        if ask.tenant is not None:
            _check(session, ask, at)
        if ask.group is not None:
            join_group(session, tenant, ask.group, ask.gpu_seconds, at)
        session.add(
            ChargeRow(
                job_id=job_id,
                tenant=tenant,
                group_id=ask.group,
                model=ask.model,
                num_samples=ask.num_samples,
                price=ask.price,
                expected_s=ask.gpu_seconds,
                charged_at=int(at),
                charged_s=ask.gpu_seconds,
                settled_at=None,
                excess_s=0.0,
                gpu_seconds={},
            )
        )

    def _book_end(self, session: Session, job: JobRow, gpu_seconds: Mapping[str, float] | None) -> None:
        """Writes what an ended job has used to it and to its tenant's usage. None: it is not known, or nothing."""
        charge = session.get(ChargeRow, job.id)
        if charge is None:  # accepted by an earlier release that runs beside this one
            return
        used = usage.by_stage(gpu_seconds)
        _book(session, charge, used)
        job.gpu_seconds, job.cost = used, sum(used.values()) * charge.price


def _check(session: Session, ask: Ask, at: float) -> None:
    limits = limits_of(session, str(ask.tenant))
    refused = refusal(limits, _counters(session, str(ask.tenant), limits, at), ask, at)
    if refused is not None:
        raise refused


def _counters(session: Session, tenant: str, limits: Limits, at: float) -> Counters:
    """What is not limited is not counted. Unfinished charges are read first: one that is settled meanwhile is counted
    twice rather than not at all."""
    charges, own = ChargeRow, ChargeRow.tenant == tenant
    is_open = charges.settled_at.is_(None)
    expected_s, expected_cost = session.execute(
        select(func.sum(charges.expected_s), func.sum(charges.expected_s * charges.price)).where(own, is_open)
    ).one()
    unfinished: list[tuple[float, int]] = []
    minute: list[tuple[int, float]] = []
    day = month = 0.0
    if limits.concurrency is not None:
        query = select(charges.charged_at + charges.expected_s, charges.num_samples).where(own, is_open)
        unfinished = [(max(end, at), samples) for end, samples in session.execute(query)]
    if limits.gpu_seconds_per_minute is not None:
        for second, amount in ((charges.charged_at, charges.charged_s), (charges.settled_at, charges.excess_s)):
            recent = select(second, func.sum(amount)).where(own, second > int(at) - MINUTE_S).group_by(second)
            minute += [(int(s or 0), float(a)) for s, a in session.execute(recent)]
    today, first = _day(at), month_start(at).date().isoformat()
    if limits.gpu_seconds_per_day is not None:
        day = _sum(session, UsageRow.gpu_seconds, UsageRow.tenant == tenant, UsageRow.day == today) + (expected_s or 0)
    if limits.monthly_budget is not None:
        of_month = UsageRow.day.between(first, today)
        month = _sum(session, UsageRow.cost, UsageRow.tenant == tenant, of_month) + (expected_cost or 0)
    return Counters(tuple(unfinished), tuple(minute), day, month)


def _sum(session: Session, column: Any, *where: ColumnElement[bool]) -> float:
    return float(session.scalar(select(func.sum(column)).where(*where)) or 0.0)


def _book(session: Session, charge: ChargeRow, used: dict[str, float]) -> None:
    """Puts `used` in place of what was booked for the charge, here and in its tenant's usage of that day."""
    more = {stage: seconds - charge.gpu_seconds.get(stage, 0.0) for stage, seconds in used.items()}
    is_first, total = charge.settled_at is None, sum(used.values())
    settled_at = int(now()) if charge.settled_at is None else charge.settled_at
    charge.settled_at = settled_at
    charge.charged_s, charge.excess_s = min(charge.expected_s, total), max(0.0, total - charge.expected_s)
    charge.gpu_seconds = used
    added = {
        "requests": int(is_first),
        **more,
        "gpu_seconds": sum(more.values()),
        "cost": sum(more.values()) * charge.price,
    }
    place = {"tenant": charge.tenant, "day": _day(settled_at), "model": charge.model}
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    row = insert(UsageRow).values(**place, **added)
    grown = {name: getattr(UsageRow, name) + getattr(row.excluded, name) for name in added}
    session.execute(row.on_conflict_do_update(index_elements=list(place), set_=grown))
    if charge.group_id is not None:
        book_in_group(session, charge.tenant, charge.group_id, more, charge.price)


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).date().isoformat()
