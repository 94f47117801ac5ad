"""The dispatcher and its walks over the real stages, in one process: what fails, is away, or comes twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from ray.exceptions import RayActorError, RayTaskError
from tests.local_handles import LocalHandle
from tests.serve.house import TIMEOUT_S, House, events

from raydiance.serve import patience
from raydiance.serve.errors import CheckpointRefused, Unavailable
from raydiance.serve.stages.denoiser import Denoiser
from raydiance.serve.stages.messages import Checkpointed, StageEvent, Stepped
from raydiance.serve.storage.job import Job, JobState
from raydiance.serve.strikes import MAX_DISPATCHERS


async def test_a_job_walks_from_the_table_to_its_file(build: Callable[..., House]) -> None:
    house = build()
    dispatcher = await house.start()
    job = house.create(previews=2)
    await dispatcher.enqueue(job.id)
    await dispatcher.enqueue(job.id)  # twice is once
    seen = await events(dispatcher, job)
    ended = await house.ended(job)
    assert (ended.state, ended.attempt, ended.progress) == (JobState.COMPLETED, 1, 100)
    assert [e.type for e in seen if e.type != "progress"] == ["queued", "started", "preview", "preview", "completed"]
    assert len(await house.artifacts.get(ended.artifacts[0].key)) == ended.artifacts[0].size_bytes
    assert {"encode_s", "denoise_s", "decode_s", "total_s"} <= set(ended.timings)


async def test_jobs_run_first_come_first_served_within_the_slots(build: Callable[..., House]) -> None:
    house = build(**{"denoiser.max_active": 1})
    dispatcher = await house.start()
    first = house.create(num_inference_steps=100)  # what comes while it runs has to wait
    await dispatcher.enqueue(first.id)
    while house.jobs.get(first.id).progress == 0:
        await asyncio.sleep(0.01)
    jobs = [house.create(n=n) for n in (2, 3, 1, 2)]
    for job in reversed(jobs):  # who is told of first is not who came first
        await dispatcher.enqueue(job.id)
    async with asyncio.timeout(TIMEOUT_S):
        while (await dispatcher.stats())["waiting"] < 8:
            assert not house.jobs.get(first.id).state.is_final, "it ended before the others waited"
            await asyncio.sleep(0)
    ended = [await house.ended(job) for job in jobs]
    starts = [job.started_at for job in ended]
    assert starts == sorted(starts)  # type: ignore[type-var]
    assert [len(job.artifacts) for job in ended] == [2, 3, 1, 2]


async def test_denoisers_hold_no_more_than_their_slots(build: Callable[..., House]) -> None:
    house = build(**{"denoiser.max_active": 2})
    dispatcher = await house.start()
    jobs = [house.create(n=n, num_inference_steps=20) for n in (2, 3, 1, 2)]
    for job in jobs:
        await dispatcher.enqueue(job.id)
    held = set()
    while any(not house.jobs.get(job.id).state.is_final for job in jobs):
        held.add((await dispatcher.stats())["active"])
        await asyncio.sleep(0)
    assert max(held) == 2
    assert [len(house.jobs.get(job.id).artifacts) for job in jobs] == [2, 3, 1, 2]


async def test_cancelling_a_running_and_a_waiting_job(build: Callable[..., House]) -> None:
    house = build(**{"denoiser.max_active": 1})
    dispatcher = await house.start()
    running, waiting, last = house.create(num_inference_steps=200), house.create(), house.create()
    for job in (running, waiting, last):
        await dispatcher.enqueue(job.id)
    while house.jobs.get(running.id).progress == 0:
        await asyncio.sleep(0.01)
    for job in (waiting, running):
        house.jobs.cancel(job.id)
        await dispatcher.cancel(job.id)
    assert (await house.ended(last)).state is JobState.COMPLETED
    assert (await events(dispatcher, running))[-1].type == "cancelled"
    assert await house.steps() < 150


async def test_a_job_that_nobody_told_of_and_one_that_a_dead_dispatcher_ran(build: Callable[..., House]) -> None:
    house = build()
    untold, orphan = house.create(), house.create()
    house.jobs.start(orphan.id)
    await house.start()
    assert (await house.ended(untold)).attempt == 1
    assert (await house.ended(orphan)).attempt == 2


async def test_a_table_that_is_away_when_the_job_ends(
    build: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    house = build()
    dispatcher = await house.start()
    complete, calls = dispatcher._jobs.complete, 0

    def flaky(*args: Any, **kwargs: Any) -> Job:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise Unavailable("the database does not answer")
        return complete(*args, **kwargs)

    monkeypatch.setattr(dispatcher._jobs, "complete", flaky)
    job = house.create()
    await dispatcher.enqueue(job.id)
    ended = await house.ended(job)
    assert (ended.state, ended.attempt, calls) == (JobState.COMPLETED, 1, 2), "nothing is done again for that"


async def test_a_job_that_never_finishes_is_failed_with_its_reason(
    build: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "PATIENCE_S", 0.01)
    house = build()
    dispatcher = await house.start()

    def full(*_: Any, **__: Any) -> Job:
        raise Unavailable("no space is left")

    monkeypatch.setattr(dispatcher._jobs, "complete", full)
    job = house.create()
    await dispatcher.enqueue(job.id)
    ended = await house.ended(job)
    assert (ended.state, ended.attempt) == (JobState.FAILED, MAX_DISPATCHERS)
    assert ended.error is not None
    assert "no space is left" in ended.error.message


async def test_a_job_that_clean_stops_put_back_is_begun_however_often(build: Callable[..., House]) -> None:
    house = build()
    job = house.create()
    for _ in range(MAX_DISPATCHERS + 1):
        house.jobs.start(job.id)
        house.jobs.requeue(job.id)
    await house.start()
    ended = await house.ended(job)
    assert (ended.state, ended.attempt) == (JobState.COMPLETED, MAX_DISPATCHERS + 2)


class Dying:
    """A denoiser whose replica dies `deaths` times, each time after its third checkpoint, or when it is to come
    further than step `at`."""

    def __init__(self, denoiser: Denoiser, deaths: int, spoil: bool = False, at: int | None = None) -> None:
        self._denoiser = denoiser
        self.deaths = self._deaths = deaths
        self._at = at
        self._spoil = spoil

    async def card(self) -> dict[str, Any]:
        return await self._denoiser.card()

    async def generate(self, work: Any, encoded: Any, image: Any) -> AsyncIterator[StageEvent]:
        try:
            async for event in self._generate(work, encoded, image):
                yield event
        except CheckpointRefused as e:  # as Ray brings it to the caller
            raise RayTaskError("generate", "", e).as_instanceof_cause() from e

    async def _generate(self, work: Any, encoded: Any, image: Any) -> AsyncIterator[StageEvent]:
        kept = 0
        async for event in self._denoiser.generate(work, encoded, image):
            if isinstance(event, Checkpointed):
                kept += 1
                if self._spoil:
                    event = Checkpointed(event.step, event.data[:-1])
            if self._at is not None and isinstance(event, Stepped | Checkpointed) and event.step > self._at:
                self._die(work)
            yield event
            if self._at is None and kept == 3:
                self._die(work)

    def _die(self, work: Any) -> None:
        if self._deaths and not work.id.startswith("warm-up"):
            self._deaths -= 1
            raise RayActorError


async def test_a_replica_that_dies_costs_the_steps_since_its_last_checkpoint(build: Callable[..., House]) -> None:
    house = build()
    house.stages["denoiser"] = LocalHandle(Dying(house.denoiser, deaths=2))
    dispatcher = await house.start()
    before, job = await house.steps(), house.create(num_inference_steps=12)
    await dispatcher.enqueue(job.id)
    ended = await house.ended(job)
    assert (ended.state, ended.attempt) == (JobState.COMPLETED, 1)
    assert await house.steps() - before <= 12 + 2 * 9  # what the loop ran ahead of the death, never from the start
    undisturbed = house.create(num_inference_steps=12)
    await dispatcher.enqueue(undisturbed.id)
    files = [await house.artifacts.get((await house.ended(j)).artifacts[0].key) for j in (job, undisturbed)]
    assert files[0] == files[1]


async def test_a_checkpoint_that_does_not_fit_starts_anew(build: Callable[..., House]) -> None:
    house = build()
    house.stages["denoiser"] = LocalHandle(Dying(house.denoiser, deaths=1, spoil=True))
    dispatcher = await house.start()
    job = house.create(num_inference_steps=12)
    await dispatcher.enqueue(job.id)
    ended = await house.ended(job)
    assert (ended.state, ended.attempt) == (JobState.COMPLETED, 1)


async def test_a_sample_that_kills_two_replicas_at_one_step_is_failed(build: Callable[..., House]) -> None:
    house = build()
    dying = Dying(house.denoiser, deaths=99, at=5)
    house.stages["denoiser"] = LocalHandle(dying)
    dispatcher = await house.start()
    poison = house.create(num_inference_steps=12)
    await dispatcher.enqueue(poison.id)
    ended = await house.ended(poison)
    assert (ended.state, dying.deaths - dying._deaths) == (JobState.FAILED, 2)
    assert ended.error is not None
    assert ended.error.code == "poison_request"
    assert "2 replicas died at its step 5" in ended.error.message
    other = house.create()
    await dispatcher.enqueue(other.id)
    assert (await house.ended(other)).state is JobState.COMPLETED, "nobody is held up by it"


async def test_a_job_that_comes_further_after_each_death_is_no_culprit(build: Callable[..., House]) -> None:
    house = build()
    house.stages["denoiser"] = LocalHandle(dying := Dying(house.denoiser, deaths=6))
    dispatcher = await house.start()
    job = house.create(num_inference_steps=60)
    await dispatcher.enqueue(job.id)
    ended = await house.ended(job)
    assert (ended.state, dying._deaths) == (JobState.COMPLETED, 0)
    assert ended.strikes["0"].count == 1


async def test_a_dispatcher_that_was_taken_for_dead_writes_nothing_more(build: Callable[..., House]) -> None:
    house = build()
    first = await house.start()
    job = house.create(num_inference_steps=200)
    await first.enqueue(job.id)
    while house.jobs.get(job.id).progress == 0:
        await asyncio.sleep(0.01)
    house.jobs.register("m", 0)  # by a successor
    async with asyncio.timeout(TIMEOUT_S):
        while (await first.stats())["walking"]:
            await asyncio.sleep(0.01)
    assert not house.jobs.get(job.id).state.is_final
    with pytest.raises(RuntimeError, match="another's now"):
        first.check_health()
    second = await house.start()
    ended = await house.ended(job)
    assert (ended.state, ended.attempt, ended.owner) == (JobState.COMPLETED, 2, second._ownership.id)
    assert (await events(second, job))[-1].type == "completed"


async def test_a_long_job_goes_on_from_its_stored_state_when_its_dispatcher_dies(build: Callable[..., House]) -> None:
    house = build(**{"denoiser.store_interval_s": 1e-9})
    dispatcher = await house.start()
    job = house.create(num_inference_steps=60)
    await dispatcher.enqueue(job.id)
    states = f"jobs/{job.id}/states"
    while not [key async for key, _ in house.artifacts.list(states)]:
        await asyncio.sleep(0.01)
    await house.retire()
    [(key, _)] = [entry async for entry in house.artifacts.list(states)]
    stored, before = int(key.rsplit("/", 1)[1]), await house.steps()
    successor = await house.start()
    warmed = await house.steps() - before
    ended = await house.ended(job)
    assert (ended.state, ended.attempt) == (JobState.COMPLETED, 2)
    assert await house.steps() - before - warmed <= 60 - stored
    async with asyncio.timeout(TIMEOUT_S):
        while [key async for key, _ in house.artifacts.list(states)]:  # nothing of it is left
            await asyncio.sleep(0.01)
    undisturbed = house.create(num_inference_steps=60)
    await successor.enqueue(undisturbed.id)
    files = [await house.artifacts.get((await house.ended(j)).artifacts[0].key) for j in (job, undisturbed)]
    assert files[0] == files[1]


class Watched:
    """A denoiser of which it is known what was sent to it."""

    def __init__(self, denoiser: Denoiser, forgets: bool = False) -> None:
        self._denoiser = denoiser
        self._forgets = forgets
        self.sent: list[tuple[bool, bool]] = []  # whether embeddings, and a checkpoint, of each lease

    async def card(self) -> dict[str, Any]:
        return await self._denoiser.card()

    async def generate(self, work: Any, encoded: Any, image: Any) -> AsyncIterator[StageEvent]:
        if not work.id.startswith("warm-up"):
            self.sent.append((encoded is not None, work.checkpoint is not None))
        if self._forgets and encoded is None:
            self._denoiser._loop._members.pop(work.id)
        async for event in self._denoiser.generate(work, encoded, image):
            yield event


@pytest.mark.parametrize("forgets", [False, True])
async def test_a_state_that_is_kept_is_not_sent_again(build: Callable[..., House], forgets: bool) -> None:
    house = build(**{"scheduling.lease_s": 1e-3})
    watched = Watched(house.denoiser, forgets)
    house.stages["denoiser"] = LocalHandle(watched)
    dispatcher = await house.start()
    job = house.create(num_inference_steps=4)
    await dispatcher.enqueue(job.id)
    ended = await house.ended(job)
    assert (ended.state, ended.attempt) == (JobState.COMPLETED, 1)
    first, *rest = watched.sent
    later = [(False, False), (True, True)] if forgets else [(False, False)]
    assert first == (True, False)
    assert rest
    assert rest == later * (len(rest) // len(later))
    undisturbed = house.create(num_inference_steps=4)
    watched._forgets = False
    await dispatcher.enqueue(undisturbed.id)
    files = [await house.artifacts.get((await house.ended(j)).artifacts[0].key) for j in (job, undisturbed)]
    assert files[0] == files[1]


async def test_a_job_that_is_cancelled_leaves_no_state(build: Callable[..., House]) -> None:
    house = build(**{"denoiser.store_interval_s": 1e-9})
    dispatcher = await house.start()
    job = house.create(num_inference_steps=200)
    await dispatcher.enqueue(job.id)
    states = f"jobs/{job.id}/states"
    while not [key async for key, _ in house.artifacts.list(states)]:
        await asyncio.sleep(0.01)
    house.jobs.cancel(job.id)
    await dispatcher.cancel(job.id)
    async with asyncio.timeout(TIMEOUT_S):
        while [key async for key, _ in house.artifacts.list(states)]:
            await asyncio.sleep(0.01)


async def test_progress_never_goes_back(build: Callable[..., House]) -> None:
    house = build()
    house.stages["denoiser"] = LocalHandle(Dying(house.denoiser, deaths=2))
    dispatcher = await house.start()
    job = house.create(num_inference_steps=12, n=2)
    await dispatcher.enqueue(job.id)
    told = [e.data["progress"] for e in await events(dispatcher, job) if e.type == "progress"]
    assert told == sorted(told)
