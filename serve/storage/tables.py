"""The tables of the job database. A row of `jobs` is a `Job`: nested values are JSON, as pydantic writes them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Double, ForeignKey, Index, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from raydiance.serve.storage.job import Job


class Base(DeclarativeBase):
    type_annotation_map = {  # noqa: RUF012  (SQLAlchemy reads it so)
        str: Text,
        float: Double,
        dict[str, Any]: JSON(none_as_null=True),
        list[dict[str, Any]]: JSON,
        dict[str, float]: JSON,
    }


class SchemaRow(Base):
    __tablename__ = "raydiance_schema"

    version: Mapped[int] = mapped_column(primary_key=True)


class JobRow(Base):
    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_created", "created_at", "id"),
        Index("ix_jobs_state", "state", "model", "created_at"),
        Index("ix_jobs_expires", "expires_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    state: Mapped[str]
    model: Mapped[str]
    request: Mapped[dict[str, Any]]
    specs: Mapped[list[dict[str, Any]]]
    progress: Mapped[int]
    attempt: Mapped[int]
    created_at: Mapped[float]
    started_at: Mapped[float | None]
    completed_at: Mapped[float | None]
    expires_at: Mapped[float | None]
    error: Mapped[dict[str, Any] | None]
    artifacts: Mapped[list[dict[str, Any]]]
    timings: Mapped[dict[str, float]]
    remixed_from: Mapped[str | None]
    idempotency_key: Mapped[str | None] = mapped_column(unique=True)
    body_hash: Mapped[str | None]

    @classmethod
    def from_job(cls, job: Job, idempotency_key: str | None, body_hash: str | None) -> JobRow:
        return cls(**job.model_dump(mode="json"), idempotency_key=idempotency_key, body_hash=body_hash)

    def to_job(self) -> Job:
        return Job.model_validate({name: getattr(self, name) for name in Job.model_fields})


class WebhookRow(Base):
    """One event for one URL. `state` is pending, done or gave_up; `due_at` is when a pending one is next tried."""

    __tablename__ = "webhooks"
    __table_args__ = (Index("ix_webhooks_due", "state", "due_at"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), index=True)
    url: Mapped[str]
    event: Mapped[str]
    state: Mapped[str]
    attempt: Mapped[int]
    due_at: Mapped[float]
    created_at: Mapped[float]
    last_error: Mapped[str | None]
