"""Groups of jobs: a deadline and a budget for all of them, and what they have used. Ids are their tenant's own.

A group's row has the sums of its ended jobs, so that deleting a job takes nothing out of them; what its unfinished jobs
are expected to use is in their charges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from sqlalchemy import ColumnElement, delete, exists, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from raydiance.serve.errors import Conflict, NotFound, TooManyRequests
from raydiance.serve.quota import fits
from raydiance.serve.storage.database import Database
from raydiance.serve.storage.job import DEFAULT_TENANT, JobState
from raydiance.serve.storage.tables import ChargeRow, GroupRow, JobRow
from raydiance.serve.storage.usage import STAGES

MIN_WAIT_S = 1.0
NEVER_S = 3600.0
"""What is told to those whom no waiting helps."""


@dataclass(frozen=True, slots=True)
class Group:
    """What holds for all jobs of a group; None is nothing.

    Args:
        created_at: in Unix seconds.
        service_tier, slo_s: of requests that give none.
        deadline_s: counted from the group's creation.
        max_gpu_seconds: of all jobs together.
    """

    id: str
    tenant: str
    created_at: float
    service_tier: str | None = None
    slo_s: float | None = None
    deadline_s: float | None = None
    max_gpu_seconds: float | None = None

    @property
    def deadline(self) -> float:
        """In Unix seconds; inf without one."""
        return math.inf if self.deadline_s is None else self.created_at + self.deadline_s


@dataclass(frozen=True, slots=True)
class Totals:
    """Of a group's jobs.

    Args:
        counts: by state, of those that are kept.
        gpu_seconds: by stage, of all that have ended, deleted ones too; `cost` likewise.
        expected_s: GPU-seconds of those that have not.
    """

    counts: dict[str, int]
    gpu_seconds: dict[str, float]
    cost: float
    expected_s: float


class Groups(Database):
    def group(self, group_id: str, tenant: str | None) -> Group:
        """Args:
            tenant: None is the operator: the default tenant's, or else that of the only tenant that has one.

        Raises:
            NotFound: the tenant has none of this id.
            Conflict: several tenants have one, and the operator asks.
        """
        with self._reading() as session:
            return _group(_row(session, group_id, tenant))

    def find_group(self, group_id: str, tenant: str) -> Group | None:
        with self._reading() as session:
            row = session.get(GroupRow, (tenant, group_id))
            return None if row is None else _group(row)

    def group_totals(self, group: Group) -> Totals:
        with self._reading() as session:
            row = session.get(GroupRow, (group.tenant, group.id))
            if row is None:
                raise _unknown(group.id)
            mine = (JobRow.tenant == group.tenant, JobRow.group_id == group.id)
            counted = session.execute(select(JobRow.state, func.count()).where(*mine).group_by(JobRow.state))
            counts = {state.value: 0 for state in JobState} | {str(state): int(n) for state, n in counted}
            used = {stage: getattr(row, stage) for stage in STAGES}
            return Totals(counts, used, row.cost, _expected_s(session, group.tenant, group.id))

    def unfinished_of(self, group: Group) -> list[str]:
        """Ids of its jobs that are queued or in progress."""
        final = [state.value for state in JobState if state.is_final]
        mine = (JobRow.tenant == group.tenant, JobRow.group_id == group.id)
        with self._reading() as session:
            return list(session.scalars(select(JobRow.id).where(*mine, JobRow.state.not_in(final))))

    def forget_groups(self, before: float) -> None:
        """Those whose creation, and deadline, lie before `before` (Unix seconds), and of which no job is kept."""
        ended = GroupRow.created_at + func.coalesce(GroupRow.deadline_s, 0.0) < before
        of_it = (JobRow.tenant == GroupRow.tenant) & (JobRow.group_id == GroupRow.id)
        open_charge = (
            (ChargeRow.tenant == GroupRow.tenant) & (ChargeRow.group_id == GroupRow.id) & ChargeRow.settled_at.is_(None)
        )
        with self._writing() as session:
            session.execute(
                delete(GroupRow)
                .where(ended, ~exists().where(of_it), ~exists().where(open_charge))
                .execution_options(synchronize_session=False)
            )


def add_group(session: Session, group: Group) -> None:
    session.add(GroupRow(**asdict(group), **dict.fromkeys((*STAGES, "cost"), 0.0)))


def join_group(session: Session, tenant: str, group_id: str, asked_s: float, at: float) -> None:
    """A job that is being stored joins its group, which is made where it is new. Nobody else joins it meanwhile.

    Raises TooManyRequests where its budget does not take so many GPU-seconds more.
    """
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    values = asdict(Group(group_id, tenant, at)) | dict.fromkeys((*STAGES, "cost"), 0.0)
    session.execute(insert(GroupRow).values(**values).on_conflict_do_nothing())
    row = session.get(GroupRow, (tenant, group_id), with_for_update=True, populate_existing=True)
    if row is None:  # forgotten in between, as an old one without jobs
        raise Conflict(f"group '{group_id}' has just been forgotten; try again", "group")
    _check(session, row, asked_s, at)


def check_budget(session: Session, tenant: str, group_id: str, asked_s: float, at: float) -> None:
    """Whether a group takes so many GPU-seconds more, now. Raises TooManyRequests."""
    row = session.get(GroupRow, (tenant, group_id))
    if row is not None:
        _check(session, row, asked_s, at)


def book_in_group(session: Session, tenant: str, group_id: str, more: Mapping[str, float], price: float) -> None:
    """What a job has used, in GPU-seconds by stage, beyond what was booked for it before."""
    grown = {stage: getattr(GroupRow, stage) + seconds for stage, seconds in more.items()}
    cost = GroupRow.cost + sum(more.values()) * price
    mine = update(GroupRow).where(GroupRow.tenant == tenant, GroupRow.id == group_id)
    session.execute(mine.values(**grown, cost=cost).execution_options(synchronize_session=False))


def budget_exceeded(group: Group, used_s: float, expected_s: float, asked_s: float, wait_s: float) -> TooManyRequests:
    """Args:
    expected_s: of what is unfinished.
    wait_s: until that has ended.
    """
    limit_s = group.max_gpu_seconds or 0.0
    helps = fits(used_s, asked_s, limit_s)
    message = (
        f"group '{group.id}' has a budget of max_gpu_seconds={limit_s:g} (used: {used_s:g}, "
        f"expected of unfinished jobs: {expected_s:g}, asked: {asked_s:g})"
    )
    if not helps:
        message += "; no waiting changes that"
    return TooManyRequests(message, max(wait_s, MIN_WAIT_S) if helps else NEVER_S, "group", "group_budget_exceeded")


def _check(session: Session, row: GroupRow, asked_s: float, at: float) -> None:
    if row.max_gpu_seconds is None:
        return
    used_s = sum(getattr(row, stage) for stage in STAGES)
    expected_s = _expected_s(session, row.tenant, row.id)
    if fits(used_s + expected_s, asked_s, row.max_gpu_seconds):
        return
    end = func.max(ChargeRow.charged_at + ChargeRow.expected_s)
    last = session.scalar(select(end).where(*_open(row.tenant, row.id)))
    raise budget_exceeded(_group(row), used_s, expected_s, asked_s, float(last or at) - at)


def _expected_s(session: Session, tenant: str, group_id: str) -> float:
    return float(session.scalar(select(func.sum(ChargeRow.expected_s)).where(*_open(tenant, group_id))) or 0.0)


def _open(tenant: str, group_id: str) -> tuple[ColumnElement[bool], ...]:
    return ChargeRow.tenant == tenant, ChargeRow.group_id == group_id, ChargeRow.settled_at.is_(None)


def _row(session: Session, group_id: str, tenant: str | None) -> GroupRow:
    rows = session.scalars(select(GroupRow).where(GroupRow.id == group_id, *_of(tenant))).all()
    own = [row for row in rows if len(rows) == 1 or row.tenant == DEFAULT_TENANT]
    if rows and not own:
        names = ", ".join(sorted(row.tenant for row in rows))
        raise Conflict(f"several tenants have a group '{group_id}': {names}", "id")
    if not own:
        raise _unknown(group_id)
    return own[0]


def _of(tenant: str | None) -> list[ColumnElement[bool]]:
    return [] if tenant is None else [GroupRow.tenant == tenant]


def _group(row: GroupRow) -> Group:
    return Group(row.id, row.tenant, row.created_at, row.service_tier, row.slo_s, row.deadline_s, row.max_gpu_seconds)


def _unknown(group_id: str) -> NotFound:
    return NotFound(f"there is no group '{group_id}'", "id")
