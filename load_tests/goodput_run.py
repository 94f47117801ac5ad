"""Requests sent to an arm of the goodput benchmark: alone, in a closed loop, as a trace says, and all at once."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Mapping, Sequence

import httpx
from bench_serving_tax import differs
from goodput_arms import Arm
from goodput_mix import TIGHT
from goodput_tally import Served
from traces import Arrival

from raydiance.serve import imaging

TIMEOUT_S = 900.0


def client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=TIMEOUT_S, limits=httpx.Limits(max_connections=None))


async def replay(arm: Arm, trace: Sequence[Arrival], alone: Mapping[str, float]) -> list[Served]:
    """Each when it is due, whatever becomes of the others. Args: alone: of the peer, from which targets follow."""
    began = time.monotonic()
    found: list[Served] = []

    async def one(i: int, arrival: Arrival, http: httpx.AsyncClient) -> None:
        await asyncio.sleep(max(began + arrival.at_s - time.monotonic(), 0.0))
        slo_s = None if arrival.tier == "batch" else TIGHT * alone[arrival.size]
        try:
            status = (await arm.ask(http, arrival, i, slo_s)).status
        except httpx.HTTPError as e:
            print(f"{arm.name}: {arrival.size}: {e!r}", file=sys.stderr)
            status = "failed"
        found.append(Served(arrival.size, arrival.tier, status, time.monotonic() - began - arrival.at_s))

    async with client() as http:
        await asyncio.gather(*[one(i, arrival, http) for i, arrival in enumerate(trace)])
    return found


async def isolated(arm: Arm, kinds: Sequence[Arrival], repeats: int) -> dict[str, float]:
    """Median seconds of each size, alone, after one that does not count."""
    async with client() as http:
        found = {}
        for arrival in kinds:
            times = []
            for i in range(repeats + 1):
                began = time.monotonic()
                if (status := (await arm.ask(http, arrival, i, None)).status) != "done":
                    raise RuntimeError(f"{arm.name}: {arrival.size} alone is {status}")
                times.append(time.monotonic() - began)
            found[arrival.size] = statistics.median(times[1:])
        return found


async def closed_loop(arm: Arm, asked: Sequence[Arrival], clients: int) -> tuple[float, float]:
    """Requests a second, and the median latency, of clients that each ask for the next when they are answered."""
    waiting, times = iter(enumerate(asked)), []

    async def one(http: httpx.AsyncClient) -> None:
        for i, arrival in waiting:
            began = time.monotonic()
            await arm.ask(http, arrival, i, None)
            times.append(time.monotonic() - began)

    began = time.monotonic()
    async with client() as http:
        await asyncio.gather(*[one(http) for _ in range(clients)])
    return len(times) / (time.monotonic() - began), statistics.median(times)


async def files(arm: Arm, kinds: Sequence[Arrival]) -> dict[str, bytes]:
    """What it makes, by size."""
    async with client() as http:
        return {arrival.size: (await arm.ask(http, arrival, 7, None)).data for arrival in kinds}


def problem_of(kinds: Sequence[Arrival], ours: Mapping[str, bytes], theirs: Mapping[str, bytes]) -> str | None:
    """What is wrong with the pixels; None where nothing is."""
    for arrival in kinds:
        mine, peers = ours[arrival.size], theirs[arrival.size]
        if arrival.kind == "video":
            if (found := differs(mine, peers)) is not None:
                return found
            continue
        a, b = (imaging.open_stored(data).tobytes() for data in (mine, peers))
        if len(a) != len(b) or (off := max(abs(x - y) for x, y in zip(a, b, strict=True))) > 1:
            return f"pictures of {arrival.size} are {'of other sizes' if len(a) != len(b) else f'{off} levels apart'}"
    return None
