"""Groups on a real PostgreSQL server: many processes join, end and settle at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.serve.storage.test_groups import (  # noqa: F401 - the same cases, on another server
    member,
    test_a_budget_takes_what_was_expected_and_not_used,
    test_a_group_and_its_jobs_are_stored_together_or_not,
    test_a_group_is_forgotten_when_nothing_is_left_of_it,
    test_ids_are_their_tenants,
    test_what_ended_jobs_used_stays,
)
from tests.serve.storage.test_servers import postgres  # noqa: F401 - a fixture

from raydiance.serve.storage.groups import Group
from raydiance.serve.storage.job import Job, now
from raydiance.serve.storage.jobs import JobStore
from raydiance.serve.storage.tables import Base

pytestmark = pytest.mark.slow

JOIN = """
from raydiance.serve.quota import Ask
from raydiance.serve.errors import TooManyRequests
store, result = JobStore(args[0]), 0
for i in range(20):
    values = {"id": f"image_acme_{who}_{i}", "tenant": "acme", "group_id": args[2]}
    job = Job.model_validate_json(args[1]).model_copy(update=values)
    try:
        store.create(job, ask=Ask("acme", "tiny", "standard", 1, 1.0, 1.0, args[2]))
        result += 1
    except TooManyRequests:
        continue
    if i % 2:
        store.cancel(job.id, {"denoise": 1.0})
        store.charge(job.id, {"denoise": 0.5})
"""


@pytest.fixture
def url(postgres: str) -> str:  # noqa: F811
    return postgres


@pytest.fixture
def store(url: str) -> Any:
    store = JobStore(url)
    with store._writing() as session:
        for table in reversed(Base.metadata.sorted_tables):
            if table.name != "raydiance_schema":
                session.execute(table.delete())
    yield store
    store.close()


def test_a_budget_holds_over_processes(store: JobStore, url: str, make_job: Callable[..., Job], race: Any) -> None:
    store.set_tenant("acme")
    group = Group("round", "acme", now(), max_gpu_seconds=9.0)
    store.create_group(group)
    accepted = sum(race(JOIN, 4, url, make_job().model_dump_json(), "round"))
    totals = store.group_totals(group)
    settled = totals.counts["cancelled"]
    assert totals.gpu_seconds["denoise"] == 0.5 * settled
    assert totals.expected_s == accepted - settled
    assert 8.0 < totals.expected_s + totals.gpu_seconds["denoise"] <= 9.0


def test_a_group_that_begins_in_many_processes(
    store: JobStore, url: str, make_job: Callable[..., Job], race: Any
) -> None:
    store.set_tenant("acme")
    assert sum(race(JOIN, 4, url, make_job().model_dump_json(), "new")) == 80
    assert sum(store.group_totals(store.group("new", "acme")).counts.values()) == 80
