"""The tables as the first release made them. Nothing of the code is used here: this does not change."""

from __future__ import annotations

from sqlalchemy import JSON, Column, Double, ForeignKey, Index, Integer, MetaData, Table, Text

SCHEMA_1 = MetaData()
VERSION = Table("raydiance_schema", SCHEMA_1, Column("version", Integer, primary_key=True))
JOBS = Table(
    "jobs",
    SCHEMA_1,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("request", JSON(none_as_null=True), nullable=False),
    Column("specs", JSON, nullable=False),
    Column("progress", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("completed_at", Double),
    Column("expires_at", Double),
    Column("error", JSON(none_as_null=True)),
    Column("artifacts", JSON, nullable=False),
    Column("timings", JSON, nullable=False),
    Column("remixed_from", Text),
    Column("idempotency_key", Text, unique=True),
    Column("body_hash", Text),
    Index("ix_jobs_created", "created_at", "id"),
    Index("ix_jobs_state", "state", "model", "created_at"),
    Index("ix_jobs_expires", "expires_at"),
)
WEBHOOKS = Table(
    "webhooks",
    SCHEMA_1,
    Column("id", Text, primary_key=True),
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("url", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("due_at", Double, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("last_error", Text),
    Index("ix_webhooks_due", "state", "due_at"),
)
