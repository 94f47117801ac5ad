"""The tables of the job database. A row of `jobs` is a `Job`: nested values are JSON, as pydantic writes them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Double, ForeignKey, Index, Text, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from raydiance.serve.storage.job import DEFAULT_TENANT, Job


class Base(DeclarativeBase):
    type_annotation_map = {  # noqa: RUF012  (SQLAlchemy reads it so)
        str: Text,
        float: Double,
        dict[str, Any]: JSON(none_as_null=True),
        list[dict[str, Any]]: JSON,
        list[str]: JSON(none_as_null=True),
        dict[str, float]: JSON,
    }


class SchemaRow(Base):
    __tablename__ = "raydiance_schema"

    version: Mapped[int] = mapped_column(primary_key=True)


class JobRow(Base):
    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_created", "created_at", "id"),
        Index("ix_jobs_tenant", "tenant", "created_at", "id"),
        Index("ix_jobs_state", "state", "model", "created_at"),
        Index("ix_jobs_expires", "expires_at"),
        Index("ix_jobs_group", "tenant", "group_id"),
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
    tenant: Mapped[str] = mapped_column(server_default=DEFAULT_TENANT)
    gpu_seconds: Mapped[dict[str, float]] = mapped_column(server_default=text("'{}'"))
    cost: Mapped[float | None]
    group_id: Mapped[str | None]
    decisions: Mapped[dict[str, float]] = mapped_column(server_default=text("'{}'"))
    owner: Mapped[str | None]
    strikes: Mapped[dict[str, Any]] = mapped_column(JSON, server_default=text("'{}'"))
    idempotency_key: Mapped[str | None] = mapped_column(unique=True)  # with its tenant: see jobs.scoped_key
    body_hash: Mapped[str | None]

    @classmethod
    def from_job(cls, job: Job, idempotency_key: str | None, body_hash: str | None) -> JobRow:
        return cls(**job.model_dump(mode="json"), idempotency_key=idempotency_key, body_hash=body_hash)

    def to_job(self) -> Job:
        return Job.model_validate({name: getattr(self, name) for name in Job.model_fields})


class DispatcherRow(Base):
    """One life of a dispatcher. `beat` counts its signs of life."""

    __tablename__ = "dispatchers"

    id: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(index=True)
    slot: Mapped[int]
    beat: Mapped[int]


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


class TenantRow(Base):
    """Whoever keys are given to, and what they may use: see `quota.Limits`."""

    __tablename__ = "tenants"

    name: Mapped[str] = mapped_column(primary_key=True)
    concurrency: Mapped[int | None]
    gpu_seconds_per_minute: Mapped[float | None]
    gpu_seconds_per_day: Mapped[float | None]
    monthly_budget: Mapped[float | None]
    allowed_models: Mapped[list[str] | None]
    allowed_tiers: Mapped[list[str] | None]
    weight: Mapped[float]
    created_at: Mapped[float]


class ApiKeyRow(Base):
    """One key, of which only the hash and the last characters are known."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.name"), index=True)
    sha256: Mapped[str] = mapped_column(unique=True)
    last4: Mapped[str]
    label: Mapped[str]
    created_at: Mapped[float]
    revoked_at: Mapped[float | None]


class ChargeRow(Base):
    """What one job is charged. It outlives its job: who deletes a job takes nothing out of its minute.

    `charged_s` counts in the second `charged_at` (acceptance), `excess_s` in the second `settled_at` (the job's end).
    """

    __tablename__ = "charges"
    __table_args__ = (
        Index("ix_charges_charged", "tenant", "charged_at"),
        Index("ix_charges_settled", "tenant", "settled_at"),
        Index("ix_charges_old", "settled_at"),
        Index("ix_charges_group", "tenant", "group_id"),
    )

    job_id: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    group_id: Mapped[str | None]
    model: Mapped[str]
    num_samples: Mapped[int]
    price: Mapped[float]
    expected_s: Mapped[float]
    charged_at: Mapped[int] = mapped_column(BigInteger)
    charged_s: Mapped[float]
    settled_at: Mapped[int | None] = mapped_column(BigInteger)
    excess_s: Mapped[float]
    gpu_seconds: Mapped[dict[str, float]]


class UsageRow(Base):
    """Sums over the jobs of a tenant that ended on one day, UTC."""

    __tablename__ = "usage"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    day: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    requests: Mapped[int]
    text_encode: Mapped[float]
    denoise: Mapped[float]
    decode: Mapped[float]
    gpu_seconds: Mapped[float]
    cost: Mapped[float]


class GroupRow(Base):
    """A group of a tenant's jobs: see `groups.Group`. GPU-seconds by stage and cost are those of its ended jobs."""

    __tablename__ = "job_groups"
    __table_args__ = (Index("ix_job_groups_id", "id"), Index("ix_job_groups_created", "created_at"))

    tenant: Mapped[str] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[float]
    service_tier: Mapped[str | None]
    slo_s: Mapped[float | None]
    deadline_s: Mapped[float | None]
    max_gpu_seconds: Mapped[float | None]
    text_encode: Mapped[float]
    denoise: Mapped[float]
    decode: Mapped[float]
    cost: Mapped[float]
