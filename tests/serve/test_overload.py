"""More than can be done: a thousand that are given up, and ten times the load. Over real HTTP."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.servers import SETTINGS, Server

from raydiance.serve import imaging

MIB = 1 << 20
SMALL = {"height": 32, "width": 32, "num_frames": 1, "task": "text-to-image"}
IMAGE = {"prompt": "a large red circle on a black background", **SMALL}
WANTED = {**IMAGE, "height": 64, "width": 64, "num_inference_steps": 30}
"""Of an overload: it takes about a second, so that ten times what can be done is some ten requests a second."""
TIMEOUT_S = 240


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Its denoiser has a core of its own, all else has the other one. Events come as often as by default."""
    settings = {name: value for name, value in SETTINGS.items() if not name.startswith("denoiser.")}
    started = Server(tmp_path_factory.mktemp("overload"), {**settings, "denoiser.num_threads": 1})
    cores = sorted(os.sched_getaffinity(0))
    try:
        started.wait_ready()
        if len(cores) > 1:
            for pid in (os.getpid(), *started.pids()):
                pin(pid, set(cores[1:]))
            for pid in started.pids("ServeReplica:raydiance:Denoiser"):
                pin(pid, {cores[0]})
        yield started
    finally:
        pin(os.getpid(), set(cores))
        started.stop()


def pin(pid: int, cores: set[int]) -> None:
    for task in Path(f"/proc/{pid}/task").glob("*"):
        os.sched_setaffinity(int(task.name), cores)


def resident(server: Server, name: str) -> int:
    """Bytes of a stage's processes."""
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in server.pids(f"raydiance:{name}")]
    assert pages
    return sum(pages) * os.sysconf("SC_PAGE_SIZE")


async def picture(client: httpx.AsyncClient, seed: int) -> bytes:
    job = (await client.post("/v1/jobs", json={**IMAGE, "seed": seed, "num_inference_steps": 8})).raise_for_status()
    async with client.stream("GET", f"/v1/jobs/{job.json()['id']}/events") as events:
        async for _ in events.aiter_lines():
            pass
    content = await client.get(f"/v1/jobs/{job.json()['id']}/content")
    return imaging.open_stored(content.raise_for_status().content).tobytes()


@pytest.mark.drill
@pytest.mark.timeout(600)
async def test_a_thousand_given_up_at_random_moments_leave_nothing(house: Server) -> None:
    rng, room = random.Random(11), asyncio.Semaphore(24)
    request = {**IMAGE, "num_frames": 9, "task": "text-to-video", "num_inference_steps": 60, "service_tier": "batch"}

    async def give_up(client: httpx.AsyncClient, i: int) -> None:
        async with room:
            job = (await client.post("/v1/jobs", json={**request, "seed": i})).raise_for_status().json()
            await asyncio.sleep(rng.uniform(0, 0.6))
            ended = (await client.delete(f"/v1/jobs/{job['id']}")).raise_for_status().json()
            assert ended["status"] == "cancelled"

    async with httpx.AsyncClient(base_url=house.url, timeout=60) as client:
        before = await picture(client, 5)
        await asyncio.gather(*[give_up(client, i) for i in range(300)])
        warm = {name: resident(house, name) for name in ("Denoiser", "Dispatcher", "Gateway")}
        await asyncio.gather(*[give_up(client, i) for i in range(300, 1000)])
        after = {name: resident(house, name) for name in warm}
        assert await picture(client, 5) == before  # the 1,001st
        jobs = (await client.get("/v1/jobs", params={"limit": 100})).json()["data"]
    assert {job["status"] for job in jobs} <= {"cancelled", "completed"}
    assert {name: after[name] - warm[name] for name in warm if after[name] - warm[name] > 48 * MIB} == {}


class Load:
    """Images that are wanted within `slo_s`, open loop.

    Attributes:
        late: of each that was let in, seconds after it was wanted; below 0 in time.
        refused: of each that was not, seconds until it was told so, and the seconds after which to come again.
    """

    def __init__(self, client: httpx.AsyncClient, slo_s: float) -> None:
        self.late: list[float] = []
        self.refused: list[tuple[float, float]] = []
        self._client = client
        self._slo_s = slo_s
        self._waiting: list[asyncio.Task[None]] = []

    async def run(self, rate: float, seconds: float) -> None:
        began = time.monotonic()
        for i in range(int(rate * seconds)):
            await asyncio.sleep(max(began + i / rate - time.monotonic(), 0))
            self._waiting.append(asyncio.ensure_future(self._ask(i)))
        await asyncio.wait_for(asyncio.gather(*self._waiting), TIMEOUT_S)

    async def _ask(self, seed: int) -> None:
        began = time.monotonic()
        request = {**WANTED, "seed": seed, "slo_s": self._slo_s}
        answer = await self._client.post("/v1/jobs", json=request)
        if answer.status_code == 429:
            self.refused.append((time.monotonic() - began, float(answer.headers["retry-after"])))
            return
        job = answer.raise_for_status().json()
        async with self._client.stream("GET", f"/v1/jobs/{job['id']}/events") as events:
            async for _ in events.aiter_lines():
                pass
        self.late.append(time.monotonic() - began - self._slo_s)


@pytest.mark.drill
@pytest.mark.timeout(600)
@pytest.mark.xfail(
    reason="not met when last measured, beside other work (load 15): told after 0.035 s in the median, 0.34 s p95; "
    "8 of 10 in time"
)
async def test_ten_times_the_load_is_refused_and_the_rest_is_in_time(house: Server) -> None:
    limits = httpx.Limits(max_connections=400)
    async with httpx.AsyncClient(base_url=house.url, timeout=TIMEOUT_S, limits=limits) as client:
        warm = Load(client, 60.0)
        await warm.run(0.5, 12.0)
        quote: dict[str, Any] = (await client.post("/v1/quotes", json=WANTED)).json()
        capacity = 1 / quote["gpu_seconds"]
        slo_s = max(10 * quote["latency_s"], 2.0)
        light, heavy = Load(client, slo_s), Load(client, slo_s)
        await light.run(0.5 * capacity, 8.0)
        await heavy.run(min(10 * capacity, 60.0), 8.0)
    in_time = [sum(late <= 0 for late in load.late) / len(load.late) for load in (light, heavy)]
    told = sorted(seconds for seconds, _ in heavy.refused)
    print(f"capacity {capacity:.1f}/s, in time {in_time}, refused {len(told)} of {len(told) + len(heavy.late)}, "
          f"told after {statistics.median(told):.3f} s, p95 {told[int(0.95 * len(told))]:.3f} s")  # fmt: skip
    assert len(told) > len(heavy.late)
    assert told[int(0.95 * len(told))] <= 0.1
    assert in_time[1] >= in_time[0] - 0.1
    assert all(1 <= again <= 60 for _, again in heavy.refused)


async def seconds_until_let_in(client: httpx.AsyncClient, slo_s: float) -> tuple[float, float] | None:
    """Of a request that is wanted within `slo_s`: what `Retry-After` says, and after how long it would be let in.

    None where it is let in.
    """
    request, began = {**WANTED, "slo_s": slo_s}, time.monotonic()
    refused = await client.post("/v1/jobs", json=request)
    if refused.status_code != 429:
        return None
    while not (await client.post("/v1/quotes", json=request)).json()["would_be_admitted"]:
        await asyncio.sleep(0.2)
    return float(refused.headers["retry-after"]), time.monotonic() - began


@pytest.mark.drill
@pytest.mark.timeout(600)
async def test_retry_after_is_the_truth(house: Server) -> None:
    """The queue is filled with what is wanted within 20 s; then come requests that are wanted sooner."""
    wanted_s = 20.0
    async with httpx.AsyncClient(base_url=house.url, timeout=TIMEOUT_S) as client:
        request = {**WANTED, "slo_s": wanted_s}
        while (await client.post("/v1/jobs", json=request)).status_code != 429:
            pass
        share = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
        probes = await asyncio.gather(*[seconds_until_let_in(client, each * wanted_s) for each in share])
    found = [each for each in probes if each is not None]
    assert len(found) > len(share) / 2
    off = statistics.median(abs(told - truth) / truth for told, truth in found)
    print(", ".join(f"told {told:.0f} s, truth {truth:.1f} s" for told, truth in found), f"median {off:.0%} off")
    assert off <= 0.25
