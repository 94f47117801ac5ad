"""What is urgent goes first, what is late is refused or dropped, and none of it changes a pixel."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.serve.house import House, events

from raydiance.models.spec import Spec
from raydiance.serve.dispatcher import Dispatcher
from raydiance.serve.storage.job import Job, JobState

VIDEO: dict[str, Any] = {"num_inference_steps": 100, "service_tier": "standard", "slo_s": 600.0}
IMAGE: dict[str, Any] = {"num_inference_steps": 16, "num_frames": 1, "service_tier": "interactive", "slo_s": 5.0}


async def file_of(house: House, job: Job) -> bytes:
    ended = await house.ended(job)
    assert ended.state is JobState.COMPLETED, ended.error
    return await house.artifacts.get(ended.artifacts[0].key)


async def run(house: House, dispatcher: Dispatcher, **request: Any) -> bytes:
    job = house.create(**request)
    await dispatcher.enqueue(job.id)
    return await file_of(house, job)


async def test_an_image_that_comes_during_a_video_is_done_long_before_it(build: Callable[..., House]) -> None:
    house = build(**{"scheduling.quantum_s": 0.0})
    dispatcher = await house.start()
    undisturbed = await run(house, dispatcher, **VIDEO)
    video = house.create(**VIDEO)
    await dispatcher.enqueue(video.id)
    while house.jobs.get(video.id).progress == 0:
        await asyncio.sleep(0.002)
    image = house.create(**IMAGE)  # not before: what is in the table is taken up, told of or not
    await dispatcher.enqueue(image.id)
    await house.ended(image)
    at = house.jobs.get(video.id)
    assert not at.state.is_final
    assert at.progress < 80
    assert await file_of(house, video) == undisturbed
    ended = house.jobs.get(video.id)
    assert ended.decisions["others_first"] >= 16  # it waited for each of the image's steps
    assert (ended.request.service_tier, house.jobs.get(image.id).decisions["urgent"]) == ("standard", 16)


async def test_leases_leave_the_pixels_alone(build: Callable[..., House]) -> None:
    house = build()
    whole = await run(house, await house.start(), **VIDEO)
    await house.retire()
    house.config = house.config.model_copy(
        update={"scheduling": house.config.scheduling.model_copy(update={"lease_s": 1e-6})}
    )
    dispatcher = await house.start()
    before = await house.steps()
    assert await run(house, dispatcher, **VIDEO) == whole  # a lease for every step
    assert await house.steps() - before == VIDEO["num_inference_steps"]


async def test_what_nobody_wants_any_longer_is_dropped(build: Callable[..., House]) -> None:
    house = build()
    dispatcher = await house.start()
    job = house.create(num_inference_steps=200, deadline_s=0.3)
    await dispatcher.enqueue(job.id)
    ended = await house.ended(job)
    assert (ended.state, ended.error and ended.error.code) == (JobState.FAILED, "deadline_exceeded")
    await asyncio.sleep(0.1)
    steps = await house.steps()
    await asyncio.sleep(0.2)
    assert await house.steps() == steps
    assert (await house.denoiser.stats())["active"] == 0
    assert (await events(dispatcher, job))[-1].type == "failed"


async def test_what_is_cancelled_is_charged_for_the_leases_that_it_had(build: Callable[..., House]) -> None:
    house = build(**{"scheduling.lease_s": 0.02})
    dispatcher = await house.start()
    job = house.create(num_inference_steps=200)
    await dispatcher.enqueue(job.id)
    while house.jobs.get(job.id).progress < 20:
        await asyncio.sleep(0.01)
    house.jobs.cancel(job.id)
    await dispatcher.cancel(job.id)
    for _ in range(100):
        if (ended := house.jobs.get(job.id)).gpu_seconds.get("denoise"):
            break
        await asyncio.sleep(0.02)
    assert ended.state is JobState.CANCELLED
    assert 0 < ended.gpu_seconds["denoise"] < 60


async def test_what_cannot_be_in_time_is_refused_with_the_time_to_come_again(build: Callable[..., House]) -> None:
    house = build()
    dispatcher = await house.start()
    long = house.create(num_inference_steps=200, slo_s=600.0)
    idle = await dispatcher.quote(long.request, long.specs)
    assert idle.is_admitted
    assert 0 < idle.latency_s < 60
    await dispatcher.enqueue(long.id)
    hurried = house.create(num_inference_steps=200, slo_s=idle.latency_s * 1.2)
    asked = await dispatcher.admit(hurried.id, hurried.request, hurried.specs)
    assert asked.is_admitted  # it is due before the long one, which has time
    second = await dispatcher.admit("image_2", hurried.request, hurried.specs)
    assert not second.is_admitted
    assert 0 < second.retry_after_s < 2 * idle.latency_s
    await dispatcher.withdraw(hurried.id)
    assert (await dispatcher.admit("image_2", hurried.request, hurried.specs)).is_admitted
    batch = hurried.request.model_copy(update={"service_tier": "batch", "slo_s": None})
    assert (await dispatcher.quote(batch, hurried.specs)).is_admitted


async def test_a_weight_reaches_the_ranks(build: Callable[..., House], monkeypatch: pytest.MonkeyPatch) -> None:
    house = build()
    dispatcher, loop = await house.start(), house.denoiser._loop
    house.jobs.set_tenant("default", weight=3.0)
    terms, join = [], loop.join

    def joining(start: Any, listener: Any) -> None:
        terms.append(start.terms)
        join(start, listener)

    monkeypatch.setattr(loop, "join", joining)
    await run(house, dispatcher)
    assert [(each.tenant, each.weight) for each in terms] == [("default", 3.0)]


async def test_a_price_is_that_of_its_size(build: Callable[..., House]) -> None:
    house = build()
    dispatcher = await house.start()
    small, large = house.create(num_inference_steps=4), house.create(num_inference_steps=40, n=3)
    prices = [await dispatcher.quote(job.request, job.specs) for job in (small, large)]
    assert prices[1].gpu_seconds > 2.9 * prices[0].gpu_seconds  # three samples, each of more steps
    assert prices[1].latency_s < prices[1].gpu_seconds
    assert Spec.from_dict(small.specs[0]).num_inference_steps == 4


async def test_many_cancelled_at_random_moments_leave_nothing(build: Callable[..., House]) -> None:
    house = build(**{"scheduling.lease_s": 0.05})
    dispatcher, rng = await house.start(), random.Random(5)
    alone = await run(house, dispatcher, seed=99)

    async def come_and_go(i: int) -> None:
        job = house.create(num_inference_steps=100, seed=i)
        await dispatcher.enqueue(job.id)
        await asyncio.sleep(rng.uniform(0, 0.5))
        house.jobs.cancel(job.id)
        await dispatcher.cancel(job.id)

    for _ in range(5):
        await asyncio.gather(*[come_and_go(i) for i in range(8)])
    assert await run(house, dispatcher, seed=99) == alone
    assert (dispatcher._backlog.active, dispatcher._backlog.waiting, dispatcher._desk._entries) == ([], [], {})
    for _ in range(100):  # those that were between two leases are kept for a moment
        if (await house.denoiser.stats())["active"] == 0:
            break
        await asyncio.sleep(0.1)
    assert (await house.denoiser.stats())["active"] == 0


@pytest.mark.parametrize("policy", ["fifo", "edf", "sjf", "tetriserve"])
async def test_every_policy_gives_the_same_pixels(build: Callable[..., House], policy: str) -> None:
    house = build(**{"scheduling.policy": policy})
    dispatcher = await house.start()
    alone = await run(house, dispatcher, num_inference_steps=6)
    jobs = [house.create(num_inference_steps=6 + i, seed=1 if i == 0 else i) for i in range(3)]
    for job in jobs:
        await dispatcher.enqueue(job.id)
    assert await file_of(house, jobs[0]) == alone
