"""A database of the first release is taken over as it is: its jobs are seen, found by their keys, and go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, insert, inspect, select, text
from tests.serve.storage.schema_1 import JOBS, SCHEMA_1, VERSION, WEBHOOKS

from raydiance.serve.errors import Conflict
from raydiance.serve.storage.database import SCHEMA_VERSION
from raydiance.serve.storage.job import Job, JobState
from raydiance.serve.storage.jobs import JobStore

MakeJob = Callable[..., Job]


@pytest.fixture
def engine(tmp_path: Any) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path}/jobs.db")
    yield engine
    engine.dispose()


def test_a_database_of_the_first_release(engine: Engine, make_job: MakeJob) -> None:
    check_migration(engine, str(engine.url), make_job)


@pytest.mark.slow
def test_processes_may_migrate_together(engine: Engine, make_job: MakeJob, race: Any) -> None:
    make_old(engine, [make_job() for _ in range(5)])
    assert race("result = len(JobStore(args[0]).unfinished())", 4, str(engine.url)) == [5] * 4


def make_old(engine: Engine, jobs: list[Job], **columns: Any) -> None:
    """Args:
    columns: of the first job.
    """
    SCHEMA_1.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(VERSION).values(version=1))
        for i, job in enumerate(jobs):
            values = {name: value for name, value in job.model_dump(mode="json").items() if name in JOBS.c}
            connection.execute(insert(JOBS).values(**values, **(columns if i == 0 else {})))


def check_migration(engine: Engine, url: str, make_job: MakeJob) -> None:
    waiting, ended, running = jobs = [
        make_job(created_at=1.0, prompt="a ☃", webhook="https://example.com/"),
        make_job(created_at=2.0).model_copy(update={"state": JobState.COMPLETED, "timings": {"denoise_s": 1.0}}),
        make_job(created_at=3.0).model_copy(update={"state": JobState.IN_PROGRESS, "attempt": 1}),
    ]
    make_old(engine, jobs, idempotency_key="k", body_hash="h")
    hook = {"id": "evt_1", "job_id": ended.id, "url": "https://example.com/", "event": "image.completed"}
    with engine.begin() as connection:
        rest = {"state": "pending", "attempt": 0, "due_at": 0.0, "created_at": 0.0}
        connection.execute(insert(WEBHOOKS).values(**hook, **rest))
    store = JobStore(url)
    try:
        with engine.begin() as connection:
            assert connection.scalar(select(VERSION.c.version)) == SCHEMA_VERSION
        assert store.list(tenant="default", order="asc") == (jobs, False)
        assert store.list(tenant="acme") == ([], False)
        assert store.find_by_key("k", "h") == waiting
        with pytest.raises(Conflict):
            store.create(make_job(), idempotency_key="k", body_hash="other")
        assert store.create(make_job().model_copy(update={"tenant": "acme"}), idempotency_key="k", body_hash="other")
        assert [d.id for d in store.due_webhooks(1.0)] == ["evt_1"]
        store.start(waiting.id)
        for job in (waiting, running):
            done = store.complete(job.id, artifacts=[], timings={"denoise_s": 2.0}, expires_at=None)
            assert (done.gpu_seconds["denoise"], done.cost) == (2.0, 2.0)
        assert store.get(ended.id).cost is None, "what an ended job took was not kept"
        [used] = store.usage(start="1970-01-01", end="9999-12-31", group_by=("tenant",))
        assert (used.tenant, used.requests, used.gpu_seconds["denoise"]) == ("default", 2, 4.0)
    finally:
        store.close()
    JobStore(url).close()


def store_columns(engine: Engine) -> dict[str, Any]:
    """By table, the columns' names and whether they may be null, and the indexes."""
    looked = inspect(engine)
    return {
        table: (
            sorted((c["name"], c["nullable"]) for c in looked.get_columns(table)),
            sorted((i["name"] or "", tuple(i["column_names"])) for i in looked.get_indexes(table)),
        )
        for table in looked.get_table_names()
    }


def test_a_migrated_database_is_as_a_new_one(engine: Engine, tmp_path: Any) -> None:
    make_old(engine, [])
    JobStore(str(engine.url)).close()
    fresh = create_engine(f"sqlite:///{tmp_path}/fresh.db")
    JobStore(str(fresh.url)).close()
    assert store_columns(engine) == store_columns(fresh)
    fresh.dispose()


def test_a_migration_that_fails_leaves_the_old_database(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    from raydiance.serve.storage import database

    make_old(engine, [])
    before = store_columns(engine)

    def broken(connection: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(database, "STEPS", {2: broken})
    with pytest.raises(ZeroDivisionError):
        JobStore(str(engine.url))
    assert store_columns(engine) == before
    with engine.begin() as connection:
        assert connection.scalar(text("SELECT version FROM raydiance_schema")) == 1
