"""What tenants are charged: at acceptance, at the end, and by whom it is counted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from raydiance.serve.errors import Forbidden, InvalidRequest, NotFound, TooManyRequests
from raydiance.serve.quota import Ask
from raydiance.serve.storage import job as job_module
from raydiance.serve.storage import jobs as jobs_module
from raydiance.serve.storage import ledger
from raydiance.serve.storage.job import Job, JobError
from raydiance.serve.storage.jobs import JobStore

MakeJob = Callable[..., Job]
NOON = datetime(2026, 6, 15, 12, tzinfo=UTC).timestamp()
ALL = {"start": "2026-01-01", "end": "2026-12-31"}


class Clock:
    def __init__(self) -> None:
        self.now = NOON


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (job_module, jobs_module, ledger):
        monkeypatch.setattr(module, "now", lambda: clock.now)
    return clock


class Tenant:
    """Submits for one tenant as `Service` does."""

    def __init__(self, store: JobStore, make_job: MakeJob, name: str, **limits: Any) -> None:
        self.store, self.name, self._make_job = store, name, make_job
        store.set_tenant(name, **limits)

    def submit(self, gpu_seconds: float = 0.0, n: int = 1, *, key: str | None = None, **rest: Any) -> Job:
        job = self._make_job().model_copy(update={"tenant": self.name, "specs": [{"seed": i} for i in range(n)]})
        ask = Ask(
            **{"tenant": self.name, "model": job.model, "tier": "standard", **rest},
            num_samples=n,
            gpu_seconds=gpu_seconds,
        )
        return self.store.create(job, idempotency_key=key, body_hash="h", ask=ask)

    def complete(self, job: Job, gpu_seconds: float) -> Job:
        self.store.start(job.id)
        used = {"denoise": gpu_seconds}
        return self.store.complete(job.id, artifacts=[], timings={}, expires_at=None, gpu_seconds=used)

    def refused(self, *args: Any, **kwargs: Any) -> float:
        with pytest.raises(TooManyRequests) as error:
            self.submit(*args, **kwargs)
        return error.value.retry_after_s

    def total(self) -> tuple[int, float, float]:
        [used] = self.store.usage(**ALL, tenant=self.name, group_by=()) or [None]
        return (0, 0.0, 0.0) if used is None else (used.requests, sum(used.gpu_seconds.values()), used.cost)


@pytest.fixture
def make(store: JobStore, make_job: MakeJob) -> Callable[..., Tenant]:
    return lambda name="acme", **limits: Tenant(store, make_job, name, **limits)


def test_concurrency_is_freed_by_every_end(clock: Clock, make: Callable[..., Tenant], store: JobStore) -> None:
    acme, globex = make(concurrency=3), make("globex", concurrency=1)
    jobs = [acme.submit(), acme.submit(10.0, n=2)]
    assert acme.refused() == 1, "the first may end any moment"
    globex.submit()
    acme.complete(jobs[0], 1.0)
    again = acme.submit()
    assert acme.refused() == 1
    store.fail(again.id, JobError(message="no"))
    last = acme.submit()
    store.cancel(last.id)
    last = acme.submit()
    store.start(last.id)
    store.requeue(last.id)
    assert acme.refused(n=2) >= 1, "what is taken up again has not ended"
    with pytest.raises(Forbidden) as error:
        acme.submit(n=4)
    assert error.value.param == "n"


def test_a_refused_job_leaves_nothing(clock: Clock, make: Callable[..., Tenant], store: JobStore) -> None:
    acme = make(concurrency=1)
    first = acme.submit(key="a")
    acme.refused(key="b")
    assert [job.id for job in store.unfinished()] == [first.id]
    assert store.find_by_key("b", "h", "acme") is None
    assert acme.submit(key="a") == first, "the same request again is none more, and no matter of limits"


def test_the_minute_counts_what_is_expected_then_what_was_used(clock: Clock, make: Callable[..., Tenant]) -> None:
    acme = make(gpu_seconds_per_minute=10)
    slow, quick = acme.submit(6.0), acme.submit(4.0)
    assert acme.refused(1.0) == 60
    clock.now += 10
    acme.complete(quick, 1.0)  # three less than was thought
    acme.submit(3.0)
    assert acme.refused(1.0) == 50
    clock.now += 20
    acme.complete(slow, 9.0)  # three more: they count from now on
    clock.now = NOON + 60
    acme.submit(4.0)  # beside 3 of second 10 and 3 of second 30
    assert acme.refused(1.0) == 10
    clock.now = NOON + 70
    acme.submit(3.0)
    assert acme.refused(1.0) == 20


def test_what_was_not_priced_is_charged_at_its_end(clock: Clock, make: Callable[..., Tenant]) -> None:
    acme = make(gpu_seconds_per_minute=10)
    job = acme.submit()
    clock.now += 100
    acme.complete(job, 30.0)
    assert acme.refused() == 60
    clock.now += 60
    acme.submit()


def test_days_and_months(clock: Clock, make: Callable[..., Tenant]) -> None:
    acme = make(gpu_seconds_per_day=10, monthly_budget=30)
    acme.complete(acme.submit(4.0, price=2.0), 4.0)
    acme.submit(5.0, price=2.0)
    assert acme.refused(2.0, price=2.0) == 12 * 3600, "unfinished work counts as it is expected"
    assert acme.refused(2.0, price=10.0) == 15.5 * 86_400, "of two limits the one that holds longer"
    clock.now += 86_400
    acme.submit(5.0, price=1.0)
    assert acme.refused(1.0) == 12 * 3600
    clock.now += 86_400
    assert acme.total() == (1, 4.0, 8.0)


def test_nobody_is_charged_for_another_and_the_operator_is_not_limited(
    clock: Clock, make: Callable[..., Tenant], store: JobStore, make_job: MakeJob
) -> None:
    acme, globex = make(gpu_seconds_per_day=1), make("globex", gpu_seconds_per_day=1)
    acme.complete(acme.submit(1.0), 1.0)
    acme.refused()
    globex.submit(1.0)
    default = make("default", concurrency=1)
    for _ in range(3):
        store.create(make_job(), ask=Ask(None, "tiny", "standard", 1))
    default.refused()


def test_models_and_tiers_are_refused_by_name(make: Callable[..., Tenant]) -> None:
    acme = make(allowed_models=("wan",), allowed_tiers=("batch",))
    for rest, param in (({}, "model"), ({"model": "wan"}, "service_tier")):
        with pytest.raises(Forbidden) as error:
            acme.submit(**rest)
        assert error.value.param == param
    acme.submit(model="wan", tier="batch")


def test_every_end_is_booked_once(clock: Clock, make: Callable[..., Tenant], store: JobStore) -> None:
    acme = make()
    done = acme.complete(acme.submit(price=0.5), 4.0)
    assert (done.gpu_seconds, done.cost) == ({"text_encode": 0.0, "denoise": 4.0, "decode": 0.0}, 2.0)
    assert done.usage() == {
        "gpu_seconds": {"text_encode": 0.0, "denoise": 4.0, "decode": 0.0, "total": 4.0},
        "cost": 2.0,
    }
    failed = store.fail(acme.submit().id, JobError(message="no"), {"text_encode": 1.0})
    cancelled = store.cancel(acme.submit().id)
    assert (failed.cost, cancelled.cost) == (1.0, 0.0)
    assert acme.submit().usage() is None
    assert acme.total() == (3, 5.0, 3.0)
    store.charge(cancelled.id, {"denoise": 2.5})
    store.charge(cancelled.id, {"denoise": 2.0})
    assert acme.total() == (3, 7.0, 5.0)
    assert store.get(cancelled.id).gpu_seconds["denoise"] == 2.0
    store.delete(cancelled.id)
    store.charge(cancelled.id, {"denoise": 3.0})
    assert acme.total() == (3, 8.0, 6.0), "a job that is gone is charged all the same"


def test_what_is_no_usage(make: Callable[..., Tenant], store: JobStore) -> None:
    job = make().submit()
    store.charge(job.id, {"denoise": 5.0})
    store.charge("video_none", {"denoise": 5.0})
    assert store.get(job.id).cost is None, "it has not ended"
    for bad in ({"sleep": 1.0}, {"denoise": -1.0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            store.charge(job.id, bad)


def test_timings_stand_in_for_gpu_seconds(make: Callable[..., Tenant], store: JobStore) -> None:
    job = make().submit()
    store.start(job.id)
    timings = {"encode_s": 0.5, "denoise_s": 2.0, "decode_s": 1.0, "decode_audio_s": 0.25, "store_s": 9.0}
    done = store.complete(job.id, artifacts=[], timings=timings, expires_at=None)
    assert done.gpu_seconds == {"text_encode": 0.5, "denoise": 2.0, "decode": 1.25}


def test_sums(clock: Clock, make: Callable[..., Tenant], store: JobStore) -> None:
    acme, globex = make(), make("globex")
    for tenant, model, day in (
        (acme, "tiny", 0), (acme, "tiny", 0), (acme, "wan", 0), (acme, "tiny", 1), (globex, "tiny", 1),
    ):  # fmt: skip
        clock.now = NOON + day * 86_400
        tenant.complete(tenant.submit(model=model), 1.0)
    lines = store.usage(**ALL)
    assert [(u.tenant, u.model, u.day, u.requests) for u in lines] == [
        ("acme", "tiny", "2026-06-15", 2),
        ("acme", "tiny", "2026-06-16", 1),
        ("acme", "wan", "2026-06-15", 1),
        ("globex", "tiny", "2026-06-16", 1),
    ]
    by_day = store.usage(**ALL, tenant="acme", group_by=("day",))
    assert [(u.tenant, u.model, u.day, u.cost) for u in by_day] == [
        (None, None, "2026-06-15", 3.0),
        (None, None, "2026-06-16", 1.0),
    ]
    [later] = store.usage(start="2026-06-16", end="2026-06-16", group_by=())
    assert (later.requests, later.gpu_seconds["denoise"]) == (2, 2.0)
    assert store.usage(start="2026-06-17", end="2026-06-18", group_by=()) == []


def test_old_charges_go_and_usage_stays(clock: Clock, make: Callable[..., Tenant], store: JobStore) -> None:
    acme = make(concurrency=2)
    ended, unfinished = acme.complete(acme.submit(), 1.0), acme.submit()
    clock.now += 2 * ledger.CORRECTED_FOR_S
    store.forget_charges(clock.now)
    store.charge(ended.id, {"denoise": 9.0})
    assert acme.total() == (1, 1.0, 1.0)
    acme.submit()
    acme.refused()
    acme.complete(unfinished, 2.0)
    assert acme.total() == (2, 3.0, 3.0)


def test_tenants_do_not_see_one_another(make: Callable[..., Tenant], store: JobStore) -> None:
    acme, globex = make(), make("globex")
    mine, other = acme.submit(key="k"), globex.submit(key="k")
    assert mine.id != other.id
    assert store.find_by_key("k", "h", "acme") == mine
    assert store.find_by_key("k", "h", "globex") == other
    assert store.find_by_key("k", "h") is None
    assert store.get(mine.id, "acme") == mine
    for call in (lambda: store.get(mine.id, "globex"), lambda: store.list(after=mine.id, tenant="globex")):
        with pytest.raises(NotFound) as error:
            call()
        assert error.value.message == f"there is no job '{mine.id}'"
    assert store.list(tenant="globex") == ([other], False)
    assert {job.id for job in store.list()[0]} == {mine.id, other.id}
    with pytest.raises(InvalidRequest):
        store.find_by_key("acme\x1fk", "h")


RACE = """
from raydiance.serve.quota import Ask
from raydiance.serve.errors import TooManyRequests
store, result = JobStore(args[0]), 0
for i in range(20):
    job = Job.model_validate_json(args[1]).model_copy(update={"id": f"image_acme_{who}_{i}", "tenant": "acme"})
    try:
        store.create(job, ask=Ask("acme", "tiny", "standard", 1, 1.0))
        result += 1
    except TooManyRequests:
        pass
"""


def test_parallel_requests_never_exceed_a_limit_together(
    store: JobStore, url: str, make_job: MakeJob, race: Any
) -> None:
    store.set_tenant("acme", concurrency=7, gpu_seconds_per_day=7)
    assert sum(race(RACE, 4, url, make_job().model_dump_json())) == 7
    assert len(store.unfinished()) == 7
