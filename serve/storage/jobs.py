"""Jobs in SQL: every transition is one conditional UPDATE, so that of two racing processes exactly one wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sqlalchemy import Select, Update, delete, func, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from raydiance.serve.errors import Conflict, InvalidRequest, NotFound, RaydianceError
from raydiance.serve.quota import Ask
from raydiance.serve.storage import usage
from raydiance.serve.storage.groups import Group, Groups, add_group
from raydiance.serve.storage.job import DEFAULT_TENANT, TRANSITIONS, Artifact, Job, JobError, JobState, now
from raydiance.serve.storage.keys import Keys, limits_of
from raydiance.serve.storage.ledger import Ledger
from raydiance.serve.storage.outbox import Outbox
from raydiance.serve.storage.owners import LOST_OWNERSHIP, Owners
from raydiance.serve.storage.tables import JobRow

MAX_KEY_CHARS = 255
KEY_SEPARATOR = "\x1f"
Jobs = list[Job]  # inside the class, `list` is its method
FINAL = [s.value for s in JobState if s.is_final]


class JobStore(Outbox, Ledger, Groups, Keys, Owners):
    """All jobs of one deployment. Synchronous and thread-safe; several processes may share one database.

    Where a method takes a `tenant`, another's job is as one that does not exist; None sees all. Where it takes
    `by`, it is done by that owner, to its own jobs only (Conflict, `lost_ownership`); None asks nobody.

    Args:
        url: see `Database`.
        every_power_cut: see `Database`.
        ended_ttl_s: seconds for which failed and cancelled jobs are kept; completed ones are told when they expire.

    Every method raises Unavailable when the database does not answer.
    """

    def __init__(self, url: str, *, ended_ttl_s: float = 7 * 86_400, every_power_cut: bool = True) -> None:
        super().__init__(url, every_power_cut=every_power_cut)
        self.ended_ttl_s = ended_ttl_s

    def create(
        self, job: Job, *, idempotency_key: str | None = None, body_hash: str | None = None, ask: Ask | None = None
    ) -> Job:
        """Store a new job and charge its tenant. With a key that the tenant used before, its earlier job is returned.

        Args:
            ask: what is charged, if the limits of its tenant let it in; None: nothing is expected or checked.

        Raises:
            Conflict: the key was used with another body (`param` is "Idempotency-Key"), or the job's id is taken.
            InvalidRequest: the key is empty or longer than 255 characters.
            Forbidden, TooManyRequests: see `Ledger.check`. Of a tenant, one job is let in after the other, whatever
                process stores it.
        """
        key = None if idempotency_key is None else scoped_key(job.tenant, idempotency_key)
        ask = ask or Ask(None, job.model, "", len(job.specs), group=job.group_id)
        try:
            with self._writing() as session:
                session.add(JobRow.from_job(job, key, body_hash))
                session.flush()  # a key that was used before is no matter of limits
                self._accept(session, job.id, job.tenant, ask)
        except IntegrityError as e:
            return self._earlier(job, key, body_hash, e)
        return job

    def create_group(self, group: Group, jobs: Sequence[tuple[Job, Ask]] = ()) -> None:
        """Store a new group and its first jobs, all of them or nothing; of each, its tenant is charged what is asked.

        Raises:
            Conflict: there is such a group, or job.
            Forbidden, TooManyRequests: as `create`.
        """
        try:
            with self._writing() as session:
                limits_of(session, group.tenant)  # locked before the group, as for every job of it
                add_group(session, group)
                for job, ask in jobs:
                    session.add(JobRow.from_job(job, None, None))
                    session.flush()
                    self._accept(session, job.id, job.tenant, ask)
        except IntegrityError as e:
            raise Conflict(f"there is a group '{group.id}' already", "id") from e

    def _earlier(self, job: Job, key: str | None, body_hash: str | None, cause: IntegrityError) -> Job:
        with self._reading() as session:
            row = session.scalar(_by_key(key)) if key is not None else None
            if row is None:
                raise Conflict(f"job '{job.id}' exists already") from cause
            return _same_body(row, body_hash).to_job()

    def get(self, job_id: str, tenant: str | None = None) -> Job:
        """The job as it is now. Raises NotFound."""
        with self._reading() as session:
            return _row(session, job_id, tenant).to_job()

    def find_by_key(self, idempotency_key: str, body_hash: str | None, tenant: str = DEFAULT_TENANT) -> Job | None:
        """The tenant's job that was accepted with this key. Raises Conflict if that was with another body."""
        with self._reading() as session:
            row = session.scalar(_by_key(scoped_key(tenant, idempotency_key)))
            return None if row is None else _same_body(row, body_hash).to_job()

    def list(
        self,
        *,
        kind: str | None = None,
        state: str | None = None,
        tenant: str | None = None,
        group: str | None = None,
        after: str | None = None,
        limit: int = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> tuple[Jobs, bool]:
        """One page of jobs by creation time, and whether there are more. `after` is the last id of the page before.

        Raises:
            NotFound: `after` names no job.
        """
        place = tuple_(JobRow.created_at, JobRow.id)
        query = _only(select(JobRow), kind=kind, state=state, tenant=tenant, group_id=group)
        with self._reading() as session:
            if after is not None:
                last = _row(session, after, tenant, "after")
                here = (last.created_at, last.id)
                query = query.where(place > here if order == "asc" else place < here)
            if order == "asc":
                query = query.order_by(JobRow.created_at, JobRow.id)
            else:
                query = query.order_by(JobRow.created_at.desc(), JobRow.id.desc())
            jobs = [row.to_job() for row in session.scalars(query.limit(limit + 1))]
        return jobs[:limit], len(jobs) > limit

    def start(self, job_id: str, *, by: str | None = None) -> Job:
        """queued -> in_progress; counts an attempt. Raises NotFound, Conflict."""
        return self._move(job_id, JobState.IN_PROGRESS, by=by, attempt=JobRow.attempt + 1, started_at=now())

    def requeue(self, job_id: str) -> Job:
        """in_progress -> queued, and nobody's, as by a clean stop. Raises NotFound, Conflict."""
        return self._move(job_id, JobState.QUEUED, started_at=None, owner=None)

    def complete(
        self,
        job_id: str,
        *,
        artifacts: Sequence[Artifact],
        timings: dict[str, float],
        expires_at: float | None,
        gpu_seconds: Mapping[str, float] | None = None,
        decisions: Mapping[str, int] | None = None,
        by: str | None = None,
    ) -> Job:
        """in_progress -> completed. Raises NotFound, Conflict.

        Args:
            timings: in seconds.
            expires_at: in Unix seconds.
            gpu_seconds: used, by stage (`usage.STAGES`); None: as far as `timings` tell.
            decisions: of the scheduler, how often each was taken of its samples.
        """
        return self._move(
            job_id,
            JobState.COMPLETED,
            usage.from_timings(timings) if gpu_seconds is None else gpu_seconds,
            progress=100,
            completed_at=now(),
            expires_at=expires_at,
            artifacts=[a.model_dump(mode="json") for a in artifacts],
            timings=timings,
            decisions=dict(decisions or {}),
            by=by,
        )

    def fail(
        self, job_id: str, error: JobError, gpu_seconds: Mapping[str, float] | None = None, *, by: str | None = None
    ) -> Job:
        """queued or in_progress -> failed. Raises NotFound, Conflict.

        Args:
            gpu_seconds: used until then, by stage, if that is known; `charge` can tell it later.
        """
        return self._end(job_id, JobState.FAILED, gpu_seconds, error=error.model_dump(mode="json"), by=by)

    def cancel(self, job_id: str, gpu_seconds: Mapping[str, float] | None = None) -> Job:
        """queued or in_progress -> cancelled; `gpu_seconds` as for `fail`. Raises NotFound, Conflict."""
        return self._end(job_id, JobState.CANCELLED, gpu_seconds)

    def set_progress(self, job_id: str, progress: int, *, by: str | None = None) -> None:
        """Percent. Ignored unless the job is in progress and `progress` is ahead of what is stored.

        Raises:
            ValueError: `progress` is outside 0 to 100.
        """
        if not 0 <= progress <= 100:
            raise ValueError(f"progress={progress} is outside 0 to 100")
        behind = update(JobRow).where(
            JobRow.id == job_id, JobRow.state == JobState.IN_PROGRESS.value, JobRow.progress < progress
        )
        with self._writing() as session:
            session.execute(_of(behind, by).values(progress=progress))

    def delete(self, job_id: str) -> Job:
        """Forget an ended job and its webhooks. Raises NotFound, and Conflict while it is unfinished."""
        ended = delete(JobRow).where(JobRow.id == job_id, JobRow.state.in_(FINAL)).returning(JobRow)
        with self._writing() as session:
            row = session.scalars(ended).one_or_none()
            if row is None:
                raise _refusal(_row(session, job_id), "deleted")
            return row.to_job()

    def unfinished(self, model: str | None = None) -> Jobs:
        """All jobs that are queued or in progress, oldest first."""
        query = _only(select(JobRow), model=model).where(JobRow.state.not_in(FINAL))
        with self._reading() as session:
            return [row.to_job() for row in session.scalars(query.order_by(JobRow.created_at, JobRow.id))]

    def count_unfinished(self, model: str | None = None) -> int:
        query = _only(select(func.count()).select_from(JobRow), model=model).where(JobRow.state.not_in(FINAL))
        with self._reading() as session:
            return session.scalar(query) or 0

    def expired(self, now: float, limit: int = 100) -> Jobs:
        """Ended jobs whose time is over at `now` (Unix seconds), the longest overdue first."""
        query = select(JobRow).where(JobRow.state.in_(FINAL), JobRow.expires_at <= now)
        with self._reading() as session:
            return [row.to_job() for row in session.scalars(query.order_by(JobRow.expires_at).limit(limit))]

    def _end(self, job_id: str, to: JobState, gpu_seconds: Mapping[str, float] | None, **values: Any) -> Job:
        at = now()
        return self._move(job_id, to, gpu_seconds, completed_at=at, expires_at=at + self.ended_ttl_s, **values)

    def _move(
        self,
        job_id: str,
        to: JobState,
        gpu_seconds: Mapping[str, float] | None = None,
        *,
        by: str | None = None,
        **values: Any,
    ) -> Job:
        sources = [s.value for s, targets in TRANSITIONS.items() if to in targets]
        moving = _of(update(JobRow).where(JobRow.id == job_id, JobRow.state.in_(sources)), by)
        with self._writing() as session:
            row = session.scalars(moving.values(state=to.value, **values).returning(JobRow)).one_or_none()
            if row is None:
                raise _refusal(_row(session, job_id), to.value, by)
            if to.is_final:
                self._book_end(session, row, gpu_seconds)
            job = row.to_job()
            if to.is_final and job.request.webhook is not None:
                self._enqueue(session, job.id, job.request.webhook, f"{job.kind}.{to.value}")
            return job


def scoped_key(tenant: str, idempotency_key: str) -> str:
    """What is stored of a tenant's key. The default tenant's are stored as they are, as before there were others.

    Raises InvalidRequest.
    """
    if not 1 <= len(idempotency_key) <= MAX_KEY_CHARS or KEY_SEPARATOR in idempotency_key:
        raise InvalidRequest(f"the key takes 1 to {MAX_KEY_CHARS} characters, none of control", "Idempotency-Key")
    return idempotency_key if tenant == DEFAULT_TENANT else f"{tenant}{KEY_SEPARATOR}{idempotency_key}"


def _row(session: Session, job_id: str, tenant: str | None = None, param: str = "id") -> JobRow:
    row = session.get(JobRow, job_id)
    if row is None or tenant not in (None, row.tenant):
        raise NotFound(f"there is no job '{job_id}'", param)
    return row


def _same_body(row: JobRow, body_hash: str | None) -> JobRow:
    if row.body_hash != body_hash:
        raise Conflict("the key was used before with another request", "Idempotency-Key")
    return row


def _refusal(row: JobRow, to: str, by: str | None = None) -> RaydianceError:
    if by not in (None, row.owner):
        return Conflict(f"job '{row.id}' is another dispatcher's now", code=LOST_OWNERSHIP)
    return Conflict(f"job '{row.id}' is {row.state} and cannot become {to}")


def _of(moving: Update, owner: str | None) -> Update:
    """What is done by an owner is done to its own jobs only."""
    return moving if owner is None else moving.where(JobRow.owner == owner)


def _by_key(key: str | None) -> Select[JobRow]:
    return select(JobRow).where(JobRow.idempotency_key == key)


def _only(query: Select[Any], **values: str | None) -> Select[Any]:
    return query.filter_by(**{k: v for k, v in values.items() if v is not None})
