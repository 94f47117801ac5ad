"""From the schema of an earlier release to this one's: what is missing is done in one transaction, at the start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sqlalchemy import Connection, inspect, text


def _tenants(connection: Connection) -> None:
    """Jobs get a tenant: those that are there the default one, whose keys could see them before."""
    _add_columns(
        connection,
        "jobs",
        tenant="TEXT DEFAULT 'default' NOT NULL",
        gpu_seconds="JSON DEFAULT '{}' NOT NULL",
        cost="DOUBLE PRECISION",
        group_id="TEXT",
        decisions="JSON DEFAULT '{}' NOT NULL",
    )
    connection.execute(text("CREATE INDEX IF NOT EXISTS ix_jobs_group ON jobs (tenant, group_id)"))
    connection.execute(text("CREATE INDEX IF NOT EXISTS ix_jobs_tenant ON jobs (tenant, created_at, id)"))
    connection.execute(
        text(
            "INSERT INTO charges (job_id, tenant, model, num_samples, price, expected_s, charged_at, charged_s,"
            " excess_s, gpu_seconds) SELECT id, tenant, model, 1, 1, 0, CAST(created_at AS BIGINT), 0, 0, '{}'"
            " FROM jobs WHERE state IN ('queued', 'in_progress')"
        )
    )


def _owners(connection: Connection) -> None:
    """Jobs get an owner. Those that are there have none that lives."""
    _add_columns(connection, "jobs", owner="TEXT", strikes="JSON DEFAULT '{}' NOT NULL")


def _add_columns(connection: Connection, table: str, **columns: str) -> None:
    """Those that are not there. A table that was made just now has them all."""
    there = {column["name"] for column in inspect(connection).get_columns(table)}
    for name, kind in columns.items():
        if name not in there:
            connection.execute(text(f"ALTER TABLE {table} ADD COLUMN {name} {kind}"))


# the version that a step leads to
STEPS: Final[Mapping[int, Callable[[Connection], None]]] = {2: _tenants, 3: _owners}
