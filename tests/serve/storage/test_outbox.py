from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raydiance.serve.storage.job import Job, JobError, now
from raydiance.serve.storage.jobs import JobStore

MakeJob = Callable[..., Job]
URL = "https://example.com/hook"


def test_an_ended_job_puts_one_event_in_the_outbox(store: JobStore, make_job: MakeJob) -> None:
    completed, failed, cancelled, silent = (
        store.create(make_job(kind="video", webhook=w)) for w in (URL, URL, URL, None)
    )
    for job in (completed, silent):
        store.start(job.id)
        assert store.due_webhooks(now()) == []
        store.complete(job.id, artifacts=[], timings={}, expires_at=None)
        assert [d.job_id for d in store.due_webhooks(now())] == [job.id] * (job is completed)
    store.fail(failed.id, JobError(message="no"))
    store.cancel(cancelled.id)
    due = {d.job_id: d for d in store.due_webhooks(now())}
    assert {j: d.event for j, d in due.items()} == {failed.id: "video.failed", cancelled.id: "video.cancelled"}
    assert {d.url for d in due.values()} == {URL}
    assert all(d.id.startswith("evt_") and d.attempt == 1 for d in due.values())


def test_what_is_taken_is_leased(store: JobStore, make_job: MakeJob) -> None:
    event = store.enqueue_webhook(store.create(make_job()).id, URL, "image.completed")
    at = now()
    assert [d.id for d in store.due_webhooks(at, lease_s=30)] == [event]
    assert store.due_webhooks(at + 29) == []
    again = store.due_webhooks(at + 31)
    assert [(d.id, d.attempt) for d in again] == [(event, 2)], "the sender died"


def test_retry_done_and_giving_up(store: JobStore, make_job: MakeJob) -> None:
    job = store.create(make_job())
    first, second = (store.enqueue_webhook(job.id, URL, "image.completed") for _ in range(2))
    at = now()
    assert len(store.due_webhooks(at)) == 2
    store.webhook_retry(first, at + 100, "status 500")
    store.webhook_done(second)
    assert store.due_webhooks(at + 99) == []
    assert [(d.id, d.attempt) for d in store.due_webhooks(at + 100)] == [(first, 2)]
    store.webhook_gave_up(first, "x" * 10_000)
    store.webhook_retry(first, at, "too late")
    assert store.due_webhooks(9e9) == []


def test_limit_takes_the_oldest(store: JobStore, make_job: MakeJob) -> None:
    job = store.create(make_job())
    events = [store.enqueue_webhook(job.id, URL, f"image.{i}") for i in range(3)]
    assert [d.id for d in store.due_webhooks(9e9, limit=2)] == events[:2]


def test_two_senders_never_get_the_same_event(
    store: JobStore, url: str, make_job: MakeJob, race: Callable[..., list[Any]]
) -> None:
    job = store.create(make_job())
    events = {store.enqueue_webhook(job.id, URL, "image.completed") for _ in range(60)}
    script = """
store, result = JobStore(args[0]), []
while due := store.due_webhooks(9e9, limit=3):
    result += [d.id for d in due]
"""
    taken = [e for part in race(script, 3, url) for e in part]
    assert sorted(taken) == sorted(events)
