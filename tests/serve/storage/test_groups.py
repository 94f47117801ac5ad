"""Groups in the database: what they have used, also when their jobs are gone, and whose they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raydiance.serve.errors import Conflict, NotFound, TooManyRequests
from raydiance.serve.quota import Ask
from raydiance.serve.storage.groups import Group
from raydiance.serve.storage.job import Job, JobError, now
from raydiance.serve.storage.jobs import JobStore

MakeJob = Callable[..., Job]
ALL = Group("round", "default", 0.0)


def ask(job: Job, gpu_seconds: float = 1.0, price: float = 1.0) -> Ask:
    return Ask(None, job.model, "", 1, gpu_seconds, price, job.group_id)


@pytest.fixture
def member(make_job: MakeJob) -> MakeJob:
    def make(group_id: str = "round", **values: object) -> Job:
        return make_job().model_copy(update={"group_id": group_id, **values})

    return make


def test_what_ended_jobs_used_stays(store: JobStore, member: MakeJob) -> None:
    done, late, gone = jobs = [member() for _ in range(3)]
    for job in jobs:
        store.create(job, ask=ask(job, 4.0, price=2.0))
    assert store.group_totals(ALL).expected_s == 12.0
    store.start(done.id)
    store.complete(done.id, artifacts=[], timings={}, expires_at=None, gpu_seconds={"denoise": 3.0, "decode": 1.0})
    store.fail(late.id, JobError(message="it burnt"))
    store.charge(late.id, {"denoise": 0.5})
    store.cancel(gone.id, {"text_encode": 0.25})
    totals = store.group_totals(ALL)
    assert totals.gpu_seconds == {"text_encode": 0.25, "denoise": 3.5, "decode": 1.0}
    assert (totals.cost, totals.expected_s) == (9.5, 0.0)
    assert totals.counts == {"queued": 0, "in_progress": 0, "completed": 1, "failed": 1, "cancelled": 1}
    store.delete(done.id)
    after = store.group_totals(ALL)
    assert (after.gpu_seconds, after.cost, after.counts["completed"]) == (totals.gpu_seconds, totals.cost, 0)


def test_a_budget_takes_what_was_expected_and_not_used(store: JobStore, member: MakeJob) -> None:
    first, second, third = (member() for _ in range(3))
    store.create_group(Group("round", "default", now(), max_gpu_seconds=10.0), [(first, ask(first, 8.0))])
    with pytest.raises(TooManyRequests) as caught:
        store.create(second, ask=ask(second, 5.0))
    assert (caught.value.code, caught.value.param) == ("group_budget_exceeded", "group")
    assert 1 <= caught.value.retry_after_s <= 8.0
    with pytest.raises(TooManyRequests):
        store.check(ask(second, 5.0))
    with pytest.raises(NotFound):
        store.get(second.id)
    store.cancel(first.id, {"denoise": 2.0})
    store.check(ask(second, 5.0))
    store.create(second, ask=ask(second, 5.0))
    store.cancel(second.id, {"denoise": 9.0})
    with pytest.raises(TooManyRequests, match=r"used: 11, .*no waiting changes that"):
        store.create(third, ask=ask(third, 0.1))


def test_a_group_and_its_jobs_are_stored_together_or_not(store: JobStore, member: MakeJob) -> None:
    jobs = [member("new") for _ in range(3)]
    group = Group("new", "default", now(), max_gpu_seconds=2.5)
    with pytest.raises(TooManyRequests):
        store.create_group(group, [(job, ask(job)) for job in jobs])
    assert store.list() == ([], False)
    assert store.find_group("new", "default") is None
    store.create_group(group, [(job, ask(job)) for job in jobs[:2]])
    assert store.find_group("new", "default") == group
    with pytest.raises(Conflict, match="'new'"):
        store.create_group(group)
    assert set(store.unfinished_of(group)) == {job.id for job in jobs[:2]}


def test_ids_are_their_tenants(store: JobStore, member: MakeJob) -> None:
    for tenant in ("acme", "globex"):
        job = member(tenant=tenant)
        store.create(job, ask=ask(job))
        assert store.group("round", tenant).tenant == tenant
    with pytest.raises(NotFound):
        store.group("round", "initech")
    with pytest.raises(Conflict, match="acme, globex"):
        store.group("round", None)
    own = member()
    store.create(own, ask=ask(own))
    assert store.group("round", None).tenant == "default"
    assert [job.id for job in store.list(tenant="default", group="round")[0]] == [own.id]


def test_a_group_is_forgotten_when_nothing_is_left_of_it(store: JobStore, member: MakeJob) -> None:
    job = member()
    store.create(job, ask=ask(job))
    store.create_group(Group("wanted", "default", now() - 100, deadline_s=1000))
    store.create_group(Group("old", "default", now() - 100))
    store.forget_groups(now() - 50)
    assert store.find_group("old", "default") is None
    store.forget_groups(now() + 50)
    assert store.find_group("wanted", "default") is not None
    assert store.find_group("round", "default") is not None
    store.cancel(job.id)
    store.delete(job.id)
    store.forget_groups(now() + 50)
    assert store.find_group("round", "default") is None
    store.charge(job.id, {"denoise": 1.0})
    with pytest.raises(NotFound):
        store.group_totals(ALL)
