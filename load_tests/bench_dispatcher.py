"""How many requests a second does one dispatcher walk through the stages, and what does it add to their latency?

    python load_tests/bench_dispatcher.py [--quick] [--json FILE] [--http]

Simulated accelerators: one denoiser, whose forwards take 20 ms whatever their batch. Requests of five steps come
open-loop at growing rates, by Python handles to the ingress, or by HTTP; each is followed to its end (at most ten
events). Added latency is what a request took from the time at which it was due, less its five steps. It holds what a
boundary of steps costs: who comes in the middle of one waits for its end. A rate is sustained where what came in the
first half took as long as what came in the second, within a second.

Everything is on this machine: the load generator, the ingress, the dispatcher, the stages and Ray's own processes. The
table of CPU seconds says who took what. Nothing is reported where a request did not complete with its one file.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any, Protocol

import httpx
from report import metric, parser, publish
from sim_results import nearest_rank
from sim_server import cpu_seconds, simulated_server

from raydiance.serve.engine.cost_model import CostModel

STEPS, FORWARD_S = 5, 0.02
SERVICE_S = STEPS * FORWARD_S
RATES = (10, 20, 30, 40, 50, 60, 80, 100)
GOAL_RATE, GOAL_ADDED_S = 60, 0.05
GROWTH_S = 1.0
OPTIONS = {
    "denoiser.progress_interval_s": 0.05,
    "denoiser.max_batch_size": 64,
    "denoiser.max_active": 256,
    "scheduling.admission": False,
    "scheduling.lead_s": 60,
    "limits.max_queued_jobs": 100_000,
}
BODY = {"prompt": "a red circle", "num_inference_steps": STEPS, "guidance_scale": 1.0, "task": "text-to-image"}


@dataclass(frozen=True, slots=True)
class Ended:
    """Args: due_s: from the start; events: until the end."""

    due_s: float
    latency_s: float
    events: int
    job: dict[str, Any]

    @property
    def added_s(self) -> float:
        return self.latency_s - SERVICE_S


class Door(Protocol):
    """How a request comes in."""

    async def submit(self, body: dict[str, Any]) -> str: ...

    def follow(self, job_id: str) -> AsyncIterator[dict[str, Any]]:
        """Its events, to the last."""
        ...


class Handles:
    """The ingress deployment's methods."""

    def __init__(self) -> None:
        from ray import serve  # which reads its environment when it is imported: `start_local` sets it

        self._handle: Any = serve.get_app_handle("raydiance")

    async def submit(self, body: dict[str, Any]) -> str:
        return str((await self._handle.submit.remote(body))["id"])

    async def follow(self, job_id: str) -> AsyncIterator[dict[str, Any]]:
        async for batch in self._handle.options(stream=True).events.remote(job_id):
            for event in batch:
                yield event


class Http:
    def __init__(self, url: str) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        self._client = httpx.AsyncClient(base_url=url, timeout=120, limits=limits)

    async def submit(self, body: dict[str, Any]) -> str:
        return str((await self._client.post("/v1/jobs", json=body)).raise_for_status().json()["id"])

    async def follow(self, job_id: str) -> AsyncIterator[dict[str, Any]]:
        async with self._client.stream("GET", f"/v1/jobs/{job_id}/events") as response:
            kind = ""
            async for line in response.aiter_lines():
                if line.startswith("event:"):
                    kind = line.removeprefix("event:").strip()
                elif line.startswith("data:"):
                    yield {"type": kind, "data": json.loads(line.removeprefix("data:"))}


def main() -> int:
    args = parser(__doc__)
    args.add_argument("--http", action="store_true", help="by HTTP; else by Python handles")
    args.add_argument("--seconds", type=float, default=15, help="at each rate")
    args.add_argument("--rates", type=float, nargs="+", default=RATES)
    options = args.parse_args()
    seconds = 4 if options.quick else options.seconds
    rates = (5, 10, 20) if options.quick else options.rates
    costs = CostModel({"step": {"forwards": FORWARD_S}})
    with simulated_server(costs, OPTIONS) as server:
        door = Http(server.url) if options.http else Handles()
        found = asyncio.run(_run(door, rates, seconds))
    if found is None:
        return 1
    sustained, halved, cpu_ms = found
    if not halved:
        print("not reported: not even the lowest rate is sustained; is this machine busy?", file=sys.stderr)
        return 1
    metrics = {
        "sustained": metric(sustained, "1/s", f">= {GOAL_RATE}"),
        "added_p50_at_half": metric(1000 * nearest_rank(halved, 0.5), "ms", "-"),
        "added_p99_at_half": metric(1000 * nearest_rank(halved, 0.99), "ms", f"<= {1000 * GOAL_ADDED_S:g}"),
        **{f"cpu_{name.replace(' ', '_')}": metric(ms, "ms/req", "-") for name, ms in cpu_ms.items()},
    }
    publish(metrics, options.json)
    return 0


async def _run(
    door: Door, rates: Sequence[float], seconds: float
) -> tuple[float, list[float], dict[str, float]] | None:
    """The highest rate that is sustained, latencies added at half of the goal's rate or below, CPU ms a request."""
    await _at(door, 5, 2)  # warms up
    sustained, halved, cpu_ms = 0.0, list[float](), dict[str, float]()
    for rate in rates:
        before = cpu_seconds()
        ended = await _at(door, rate, seconds)
        spent = {name: now_s - before.get(name, 0.0) for name, now_s in cpu_seconds().items()}
        if (wrong := mistakes(ended)) is not None:
            print(f"not reported: at {rate:g} a second, {wrong}", file=sys.stderr)
            return None
        added = [each.added_s for each in ended]
        half = len(ended) // 2
        growth_s = fmean(added[half:]) - fmean(added[:half])
        done_s = max(each.due_s + each.latency_s for each in ended)
        busiest = ", ".join(f"{name} {s:.1f} s" for name, s in sorted(spent.items(), key=lambda e: -e[1])[:6])
        p50_ms, p99_ms = (1000 * nearest_rank(added, q) for q in (0.5, 0.99))
        print(
            f"{rate:5g}/s: {len(ended)} in {done_s:.1f} s, added p50 {p50_ms:.0f} ms, p99 {p99_ms:.0f} ms, "
            f"events {fmean(e.events for e in ended):.1f}; CPU: {busiest}",
            flush=True,
        )
        if growth_s > GROWTH_S:
            break
        sustained = len(ended) / done_s
        cpu_ms = {name: 1000 * s / len(ended) for name, s in sorted(spent.items(), key=lambda e: -e[1]) if s > 0.05}
        if rate <= GOAL_RATE / 2:
            halved = added
    return sustained, halved, cpu_ms


def mistakes(ended: Sequence[Ended]) -> str | None:
    """What cannot be of requests that were walked right; None where there is nothing."""
    if len({each.job["id"] for each in ended}) < len(ended):
        return "two requests were one job"
    for each in ended:
        job = each.job
        if job["status"] != "completed" or len(job["outputs"]) != 1 or job["attempt"] != 1:
            return f"job {job['id']} ended as {job['status']} with {len(job['outputs'])} files: {job['error']}"
        if each.latency_s < SERVICE_S:
            return f"job {job['id']} took {each.latency_s:.3f} s, less than its steps"
    return None


async def _at(door: Door, rate: float, seconds: float) -> list[Ended]:
    """Poisson arrivals, each followed to its end; in the order in which they were due."""
    rng, due, times = Random(1), 0.0, []  # noqa: S311
    while (due := due + rng.expovariate(rate)) < seconds:
        times.append(due)
    began = time.perf_counter()

    async def one(number: int, due_s: float) -> Ended:
        await asyncio.sleep(max(began + due_s - time.perf_counter(), 0.0))
        job_id, events = await door.submit({**BODY, "seed": number}), 0
        job: dict[str, Any] = {}
        async for event in door.follow(job_id):
            job, events = event["data"], events + 1
        return Ended(due_s, time.perf_counter() - began - due_s, events, job)

    return list(await asyncio.gather(*[one(i, due_s) for i, due_s in enumerate(times)]))


if __name__ == "__main__":
    sys.exit(main())
