"""Who walks a job: of two that try, one; of one that is dead, nothing more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raydiance.serve.errors import Conflict
from raydiance.serve.storage.job import Job, JobError, JobState
from raydiance.serve.storage.jobs import JobStore
from raydiance.serve.storage.owners import DISPATCHER
from raydiance.serve.strikes import Strike

MakeJob = Callable[..., Job]


@pytest.fixture
def job(store: JobStore, make_job: MakeJob) -> Job:
    return store.create(make_job(model="m"))


def test_a_job_is_claimed_once(store: JobStore, job: Job) -> None:
    one, two = store.register("m", 0), store.register("m", 1)
    assert store.free("m", one) == store.free("m", two) == [job]
    claimed = store.claim(job.id, one)
    assert claimed == job.model_copy(update={"owner": one})
    assert store.claim(job.id, two) is None
    assert store.claim(job.id, one) == claimed, "twice is once"
    assert store.free("m", two) == []
    assert store.free("m", one) == [claimed]
    assert store.free("other", two) == []


def test_an_owner_without_a_sign_of_life_is_buried_once(store: JobStore, job: Job) -> None:
    one, two = store.register("m", 0), store.register("m", 1)
    store.claim(job.id, one)
    store.start(job.id, by=one)
    store.set_progress(job.id, 30, by=one)
    beats = store.peers("m")
    assert beats == {one: 0, two: 0}
    assert store.beat(one)
    assert not store.bury(one, beats[one]), "it gave a sign of life meanwhile"
    assert store.bury(one, 1)
    assert not store.bury(one, 1)
    assert not store.beat(one)
    taken = store.claim(job.id, two)
    assert taken is not None
    assert (taken.state, taken.owner, taken.attempt, taken.progress) == (JobState.QUEUED, two, 1, 30)
    assert taken.strikes == {DISPATCHER: Strike(place=30, count=1)}


def test_what_a_deposed_owner_would_still_write_is_refused(store: JobStore, job: Job) -> None:
    one = store.register("m", 0)
    store.claim(job.id, one)
    store.start(job.id, by=one)
    two = store.register("m", 0)  # its successor in the slot
    store.claim(job.id, two)
    store.start(job.id, by=two)
    store.set_progress(job.id, 40, by=one)
    assert store.get(job.id).progress == 0
    for write in (
        lambda: store.complete(job.id, artifacts=[], timings={}, expires_at=None, by=one),
        lambda: store.fail(job.id, JobError(message="no"), by=one),
        lambda: store.strike(job.id, "0", 3, by=one),
        lambda: store.start(job.id, by=one),
        lambda: store.register("m", 0, again=True),
    ):
        with pytest.raises(Conflict) as refused:
            write()
        assert refused.value.code == "lost_ownership"
    assert store.claim(job.id, one) is None
    assert store.complete(job.id, artifacts=[], timings={}, expires_at=None, by=two).attempt == 2
    assert store.claim(job.id, two) is None, "it has ended"


def test_one_that_was_buried_and_has_no_successor_may_come_back(store: JobStore, job: Job) -> None:
    one = store.register("m", 0)
    store.bury(one, 0)
    again = store.register("m", 0, again=True)
    assert store.claim(job.id, again) is not None


def test_strikes_count_where_a_job_comes_no_further(store: JobStore, job: Job) -> None:
    owner = store.register("m", 0)
    store.claim(job.id, owner)
    for place, count in ((4, 1), (4, 2), (2, 3), (7, 1)):
        after = store.strike(job.id, "1", place, by=owner)
        assert after.strikes["1"] == Strike(place=max(place, 4), count=count)
    store.cancel(job.id)
    with pytest.raises(Conflict):
        store.strike(job.id, "1", 9, by=owner)


def test_what_a_clean_stop_puts_back_has_no_strike(store: JobStore, job: Job) -> None:
    one = store.register("m", 0)
    store.claim(job.id, one)
    store.start(job.id, by=one)
    assert store.requeue(job.id).owner is None
    claimed = store.claim(job.id, store.register("m", 1))
    assert claimed is not None
    assert claimed.strikes == {}


CLAIMS = """
store = JobStore(args[0])
owner = store.register("m", int(who))
result = [job.id for job in store.free("m", owner) if store.claim(job.id, owner)]
"""


@pytest.mark.slow
def test_processes_that_claim_at_once(store: JobStore, url: str, make_job: MakeJob, race: Any) -> None:
    created = [store.create(make_job(model="m")).id for _ in range(30)]
    claims = race(CLAIMS, 3, url)
    assert sorted(job for each in claims for job in each) == sorted(created)


@pytest.mark.parametrize(("every_power_cut", "synchronous"), [(True, 2), (False, 1)])
def test_what_can_be_done_again_waits_for_no_disk(url: str, every_power_cut: bool, synchronous: int) -> None:
    store = JobStore(url, every_power_cut=every_power_cut)
    with store._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == synchronous  # FULL, NORMAL
    store.close()
