"""Whose a job is: the dispatcher that walks it. One that shows no sign of life loses its jobs to another, at once for
all: what it would still write of them is refused."""

from __future__ import annotations

import uuid

from sqlalchemy import ColumnElement, delete, or_, select, update

from raydiance.serve.errors import Conflict
from raydiance.serve.storage.database import Database
from raydiance.serve.storage.job import Job, JobState
from raydiance.serve.storage.tables import DispatcherRow, JobRow
from raydiance.serve.strikes import struck

DISPATCHER = "dispatcher"
LOST_OWNERSHIP = "lost_ownership"
UNFINISHED = [s.value for s in JobState if not s.is_final]


class Owners(Database):
    """An owner is one life of a dispatcher. Every method raises Unavailable when the database does not answer."""

    def register(self, model: str, slot: int, *, again: bool = False) -> str:
        """A new owner in a slot of a model's dispatchers. The one that had it before loses its jobs.

        Args:
            again: for one that had the slot before. Raises Conflict where it has a successor.
        """
        owner = f"{model}/{slot}/{uuid.uuid4().hex[:12]}"
        mine = DispatcherRow.model == model, DispatcherRow.slot == slot
        with self._writing() as session:
            if again and session.scalar(select(DispatcherRow.id).where(*mine)) is not None:
                raise Conflict(f"slot {slot} of the dispatchers of '{model}' is another's now", code=LOST_OWNERSHIP)
            session.execute(delete(DispatcherRow).where(*mine))
            session.add(DispatcherRow(id=owner, model=model, slot=slot, beat=0))
        return owner

    def beat(self, owner: str) -> bool:
        """A sign of life. False: another has taken its place, and its jobs."""
        beating = update(DispatcherRow).where(DispatcherRow.id == owner).values(beat=DispatcherRow.beat + 1)
        with self._writing() as session:
            return session.scalar(beating.returning(DispatcherRow.id)) is not None

    def peers(self, model: str) -> dict[str, int]:
        """The signs of life that each owner of a model's jobs has given."""
        with self._reading() as session:
            rows = session.execute(select(DispatcherRow.id, DispatcherRow.beat).where(DispatcherRow.model == model))
            return {row.id: row.beat for row in rows}

    def bury(self, owner: str, beat: int) -> bool:
        """Its jobs are free. False where it has given another sign of life, or is gone already."""
        still = DispatcherRow.id == owner, DispatcherRow.beat == beat
        with self._writing() as session:
            return session.scalar(delete(DispatcherRow).where(*still).returning(DispatcherRow.id)) is not None

    def free(self, model: str, owner: str) -> list[Job]:
        """Unfinished jobs of a model that no other living owner has, oldest first."""
        query = select(JobRow).where(JobRow.model == model, JobRow.state.in_(UNFINISHED), _is_free(owner))
        with self._reading() as session:
            return [row.to_job() for row in session.scalars(query.order_by(JobRow.created_at, JobRow.id))]

    def claim(self, job_id: str, owner: str) -> Job | None:
        """The job, which is `owner`'s and queued now; None where another has it, it has ended, or `owner` has lost its
        place. One that was in progress has a strike more: it was begun, and not ended by who began it.
        """
        lives = select(DispatcherRow.id).where(DispatcherRow.id == owner).exists()
        claiming = update(JobRow).where(JobRow.id == job_id, JobRow.state.in_(UNFINISHED), _is_free(owner), lives)
        with self._writing() as session:
            row = session.scalars(claiming.values(owner=owner).returning(JobRow)).one_or_none()
            if row is None:
                return None
            job = row.to_job()
            if job.state is not JobState.IN_PROGRESS:
                return job
            row.state, row.started_at = JobState.QUEUED.value, None
            return _strike(row, DISPATCHER, job.progress)

    def strike(self, job_id: str, who: str, place: int, *, by: str) -> Job:
        """What ran an unfinished job of an owner has died, at a place (see `strikes`). Raises Conflict."""
        own = JobRow.id == job_id, JobRow.owner == by, JobRow.state.in_(UNFINISHED)
        with self._writing() as session:
            row = session.scalar(select(JobRow).where(*own).with_for_update())
            if row is None:
                raise Conflict(f"job '{job_id}' is no longer this dispatcher's", code=LOST_OWNERSHIP)
            return _strike(row, who, place)


def _strike(row: JobRow, who: str, place: int) -> Job:
    strikes = struck(row.to_job().strikes, who, place)
    row.strikes = {name: strike.model_dump() for name, strike in strikes.items()}
    return row.to_job()


def _is_free(owner: str) -> ColumnElement[bool]:
    living = select(DispatcherRow.id)
    return or_(JobRow.owner.is_(None), JobRow.owner == owner, JobRow.owner.not_in(living))
