from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from raydiance.serve.errors import ConfigError, Conflict, InvalidRequest, NotFound, Unavailable
from raydiance.serve.request import ImageInput, Source
from raydiance.serve.storage.job import Artifact, Job, JobError, JobState
from raydiance.serve.storage.jobs import JobStore

MakeJob = Callable[..., Job]
Race = Callable[..., list[Any]]
ARTIFACT = Artifact(key="jobs/x/0.png", index=0, content_type="image/png", size_bytes=3, width=64, height=64, seed=7)
ERROR = JobError(message="out of memory", param="num_frames")


def test_a_job_comes_back_as_it_was(store: JobStore, make_job: MakeJob) -> None:
    source = ImageInput(source=Source(artifact="jobs/a/input-0.png"))
    job = make_job(prompt="a ☃ 'quoted' \x00 text", inputs=[source], metadata={"k": "v"}, seed=2**63 + 1)
    assert store.create(job) == job
    assert store.get(job.id) == job


def test_a_job_is_there_after_a_restart(url: str, make_job: MakeJob) -> None:
    first = JobStore(url)
    job = first.create(make_job(prompt="a cat"))
    first.close()
    second = JobStore(url)
    assert second.get(job.id) == job
    second.close()


def test_a_life(store: JobStore, make_job: MakeJob) -> None:
    job = store.create(make_job(kind="video"))
    started = store.start(job.id)
    assert (started.state, started.attempt) == (JobState.IN_PROGRESS, 1)
    assert started.started_at is not None
    done = store.complete(job.id, artifacts=[ARTIFACT], timings={"denoise": 1.5}, expires_at=9e9)
    assert done == store.get(job.id)
    assert done.state is JobState.COMPLETED
    assert (done.progress, done.artifacts, done.timings, done.expires_at) == (100, [ARTIFACT], {"denoise": 1.5}, 9e9)
    assert done.completed_at is not None


def test_a_failure_is_kept(store: JobStore, make_job: MakeJob) -> None:
    failed = store.fail(store.create(make_job()).id, ERROR)
    assert (failed.state, failed.error) == (JobState.FAILED, ERROR)


def test_requeue_counts_attempts_and_starts_progress_over(store: JobStore, make_job: MakeJob) -> None:
    job = store.create(make_job())
    store.start(job.id)
    store.set_progress(job.id, 60)
    requeued = store.requeue(job.id)
    assert (requeued.state, requeued.progress, requeued.started_at) == (JobState.QUEUED, 60, None)
    assert store.start(job.id).attempt == 2


def test_progress_never_goes_back(store: JobStore, make_job: MakeJob) -> None:
    job = store.create(make_job())
    store.set_progress(job.id, 10)
    assert store.get(job.id).progress == 0, "a queued job makes no progress"
    store.start(job.id)
    for progress, expected in ((40, 40), (30, 40), (40, 40), (99, 99)):
        store.set_progress(job.id, progress)
        assert store.get(job.id).progress == expected
    store.cancel(job.id)
    store.set_progress(job.id, 100)
    assert store.get(job.id).progress == 99
    store.set_progress("image_unknown", 5)
    with pytest.raises(ValueError, match="progress=101"):
        store.set_progress(job.id, 101)


def test_an_illegal_transition_names_both_states(store: JobStore, make_job: MakeJob) -> None:
    job = store.create(make_job())
    with pytest.raises(Conflict, match="is queued and cannot become completed"):
        store.complete(job.id, artifacts=[], timings={}, expires_at=None)
    store.cancel(job.id)
    with pytest.raises(Conflict, match="is cancelled and cannot become in_progress"):
        store.start(job.id)


@pytest.mark.parametrize("call", ["get", "start", "cancel", "requeue", "delete"])
def test_an_unknown_job_is_not_found(store: JobStore, call: str) -> None:
    with pytest.raises(NotFound, match="image_none"):
        getattr(store, call)("image_none")


def test_delete_takes_ended_jobs_only(store: JobStore, make_job: MakeJob) -> None:
    job = store.create(make_job(webhook="https://example.com/"))
    with pytest.raises(Conflict, match="is queued and cannot become deleted"):
        store.delete(job.id)
    ended = store.cancel(job.id)
    assert store.delete(job.id) == ended
    with pytest.raises(NotFound):
        store.get(job.id)
    assert store.due_webhooks(9e9) == [], "its webhooks go with it"


def test_the_same_key_and_body_give_the_earlier_job(store: JobStore, make_job: MakeJob) -> None:
    first = store.create(make_job(), idempotency_key="k", body_hash="a")
    started = store.start(first.id)
    assert store.create(make_job(), idempotency_key="k", body_hash="a") == started
    with pytest.raises(Conflict) as error:
        store.create(make_job(), idempotency_key="k", body_hash="b")
    assert error.value.param == "Idempotency-Key"
    assert store.find_by_key("k", "a") == started
    with pytest.raises(Conflict):
        store.find_by_key("k", "b")
    assert store.find_by_key("other", "h") is None
    assert store.create(make_job()).id != store.create(make_job()).id, "without a key nothing is shared"


def test_bad_keys_and_ids_are_refused(store: JobStore, make_job: MakeJob) -> None:
    for key in ("", "k" * 256):
        with pytest.raises(InvalidRequest) as error:
            store.create(make_job(), idempotency_key=key)
        assert error.value.param == "Idempotency-Key"
    job = store.create(make_job())
    with pytest.raises(Conflict, match="exists already"):
        store.create(job, idempotency_key="k")


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_hold_every_job_once_in_order(store: JobStore, make_job: MakeJob, order: Any) -> None:
    jobs = [make_job(created_at=float(t // 2)) for t in range(7)]  # pairs of one age: the id decides
    for job in jobs:
        store.create(job)
    expected = sorted((j.created_at, j.id) for j in jobs)
    seen: list[str] = []
    more = True
    while more:
        page, more = store.list(after=seen[-1] if seen else None, limit=2, order=order)
        seen += [j.id for j in page]
    assert seen == [i for _, i in (expected if order == "asc" else expected[::-1])]


def test_list_filters(store: JobStore, make_job: MakeJob) -> None:
    image, video = store.create(make_job()), store.create(make_job(kind="video"))
    store.start(video.id)
    assert [j.id for j in store.list(kind="image")[0]] == [image.id]
    assert [j.id for j in store.list(state="in_progress")[0]] == [video.id]
    assert store.list(kind="image", state="in_progress") == ([], False)
    with pytest.raises(NotFound) as error:
        store.list(after="gone")
    assert error.value.param == "after"


def test_unfinished_and_expired(store: JobStore, make_job: MakeJob) -> None:
    young = store.create(make_job(created_at=2.0))
    old = store.create(make_job(created_at=1.0, model="wan"))
    ended = store.create(make_job(created_at=0.0))
    store.start(ended.id)
    store.complete(ended.id, artifacts=[], timings={}, expires_at=100.0)
    assert [j.id for j in store.unfinished()] == [old.id, young.id]
    assert [j.id for j in store.unfinished("wan")] == [old.id]
    assert (store.count_unfinished(), store.count_unfinished("wan"), store.count_unfinished("x")) == (2, 1, 0)
    assert store.expired(99.0) == []
    assert [j.id for j in store.expired(100.0)] == [ended.id]


def test_failed_and_cancelled_jobs_expire_too(url: str, make_job: MakeJob) -> None:
    store = JobStore(url, ended_ttl_s=50)
    ended = [store.fail(store.create(make_job()).id, ERROR), store.cancel(store.create(make_job()).id)]
    for job in ended:
        assert job.completed_at is not None
        assert job.expires_at == job.completed_at + 50
    assert len(store.expired(max(j.expires_at or 0 for j in ended), limit=1)) == 1
    store.close()


def test_one_winner_of_a_transition_race(store: JobStore, url: str, make_job: MakeJob, race: Race) -> None:
    jobs = [store.create(make_job(webhook="https://example.com/")).id for _ in range(40)]
    script = """
store, result = JobStore(args[0]), []
for job in args[1].split(","):
    try:
        store.start(job) if int(who) % 2 else store.cancel(job)
        result.append(job)
    except Conflict:
        pass
"""
    won = race(script, 4, url, ",".join(jobs))
    ended = {j for i in (0, 2) for j in won[i]}
    assert sorted(won[0] + won[2]) == sorted(ended), "no job was cancelled twice"
    starts = won[1] + won[3]
    assert len(starts) == len(set(starts)), "no job was started twice"
    assert ended == set(jobs)
    assert len(store.due_webhooks(9e9, limit=100)) == len(jobs), "one webhook for each, whoever won"


def test_one_job_for_a_key_in_a_race(store: JobStore, url: str, make_job: MakeJob, race: Race) -> None:
    template = make_job().model_dump_json()
    script = """
store, result = JobStore(args[0]), []
for i in range(20):
    job = Job.model_validate_json(args[1]).model_copy(update={"id": f"image_{who}_{i}"})
    result.append(store.create(job, idempotency_key=str(i), body_hash="h").id)
"""
    results = race(script, 4, url, template)
    assert all(r == results[0] for r in results)
    assert len(store.unfinished()) == 20


def test_processes_may_create_the_database_together(url: str, race: Race) -> None:
    assert race("result = JobStore(args[0]).count_unfinished()", 4, url) == [0] * 4


def test_a_newer_schema_is_refused(store: JobStore, url: str) -> None:
    with create_engine(url).begin() as connection:
        connection.execute(text("UPDATE raydiance_schema SET version = 99"))
    with pytest.raises(ConfigError, match=r"schema version 99.*knows version 3"):
        JobStore(url)


@pytest.mark.parametrize(
    "bad",
    [
        "mysql://u:secret@h/d",
        "sqlite://",
        "sqlite:///:memory:",
        "no url",
        "sqlite:////proc/none/jobs.db",
        "sqlite:////",
    ],
)
def test_what_cannot_be_a_database_is_refused_by_name(bad: str) -> None:
    with pytest.raises(ConfigError, match=r"storage\.database") as error:
        JobStore(bad)
    assert "secret" not in str(error.value)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"not a database, but longer than a header " * 20)
    with pytest.raises(ConfigError, match=r"storage\.database"):
        JobStore(f"sqlite:///{tmp_path}/jobs.db")


def test_a_broken_database_is_unavailable(store: JobStore, url: str, make_job: MakeJob) -> None:
    with create_engine(url).begin() as connection:
        connection.execute(text("DROP TABLE jobs"))
    with pytest.raises(Unavailable, match="job database failed"):
        store.create(make_job())
