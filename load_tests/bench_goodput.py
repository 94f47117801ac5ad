"""How many requests are done in time, under bursts of agents? Ours beside a plain Ray Serve deployment of diffusers.

    python load_tests/bench_goodput.py [--quick] [--json FILE] [--seconds 60] [--loads 0.7 1.0 1.5]

Open loop: images and videos arrive in bursts that were drawn beforehand, at a load relative to what the plain
deployment saturates at, whatever becomes of earlier ones. A request is in time where it is done within 1.5 times (and 3
times) what it takes the plain deployment alone, from when it was due. Arms take the same trace one after the other, on
the same cores; the plain one goes on standing by. Nothing is reported unless ours makes the frames of diffusers.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import httpx
from bench_serving_tax import differs
from goodput_arms import Arm, ours, plain
from report import metric, parser, publish
from traces import Arrival, Ask, Mix, agents

from raydiance.serve import imaging

MIX = Mix(
    images=(Ask("32x32", 16, 3), Ask("64x64", 12, 1)),
    videos=(Ask("32x32x9", 20, 2), Ask("64x64x9", 20, 1)),
    video_share=0.25,
    batch_share=0.1,
    round_s=1.0,
)
TIGHT, LOOSE = 1.5, 3.0
SEED = 4
CLIENTS = (1, 2, 4, 8, 16)
TIMEOUT_S = 600.0
POLICIES = ("fifo", "sjf", "slack")
UNORDERED = {"scheduling.admission": False, "scheduling.lead_s": 1e6, "scheduling.lease_s": 1e6}
"""For the policies that ours is compared with: everything is handed to the replica at once, and they alone decide."""


@dataclass(frozen=True)
class Served:
    """Args: seconds: from when it was due; status: as an `Answer` has it."""

    arrival: Arrival
    status: str
    seconds: float


@dataclass(frozen=True)
class Tally:
    """Of one arm at one load."""

    arm: str
    load: float
    served: Sequence[Served]
    alone: dict[str, float]

    def in_time(self, scale: float) -> int:
        return sum(s.status == "done" and s.seconds <= scale * self.alone[s.arrival.size] for s in self.wanted)

    @property
    def wanted(self) -> list[Served]:
        """Those with a deadline."""
        return [s for s in self.served if s.arrival.tier != "batch"]

    def line(self) -> str:
        done = sorted(s.seconds for s in self.wanted if s.status == "done")
        batch = [s.seconds for s in self.served if s.arrival.tier == "batch" and s.status == "done"]
        p50, p95 = (done[min(int(q * len(done)), len(done) - 1)] if done else 0.0 for q in (0.5, 0.95))
        refused, num = sum(s.status == "refused" for s in self.served), len(self.wanted)
        failed = sum(s.status == "failed" for s in self.served)
        shares = [f"{100 * self.in_time(scale) / num:7.1f}%" for scale in (TIGHT, LOOSE)]
        cells = (
            f"{num:5} {' '.join(shares)} {refused:8} {failed:6} {p50:7.2f} {p95:7.2f} {max(batch, default=0.0):10.1f}"
        )
        return f"{self.load:4.1f}  {self.arm:34} {cells}"


async def replay(arm: Arm, trace: Sequence[Arrival], alone: dict[str, float]) -> list[Served]:
    began = time.monotonic()
    found: list[Served] = []

    async def one(i: int, arrival: Arrival, client: httpx.AsyncClient) -> None:
        await asyncio.sleep(max(began + arrival.at_s - time.monotonic(), 0.0))
        slo_s = None if arrival.tier == "batch" else TIGHT * alone[arrival.size]
        answer = await arm.ask(client, arrival, i, slo_s)
        found.append(Served(arrival, answer.status, time.monotonic() - began - arrival.at_s))

    async with _client() as client:
        await asyncio.gather(*[one(i, arrival, client) for i, arrival in enumerate(trace)])
    return found


async def isolated(arm: Arm, repeats: int) -> dict[str, float]:
    """Median seconds of each size, alone."""
    async with _client() as client:
        found = {}
        for arrival in kinds():
            times = []
            for i in range(repeats + 1):
                began = time.monotonic()
                if (status := (await arm.ask(client, arrival, i, None)).status) != "done":
                    raise RuntimeError(f"{arm.name}: {arrival.size} alone is {status}")
                times.append(time.monotonic() - began)
            found[arrival.size] = statistics.median(times[1:])
        return found


async def closed_loop(arm: Arm, clients: int, seconds: float) -> tuple[float, float]:
    """Requests a second, and the median latency, of so many clients that each ask again when they are answered."""
    end, rng = time.monotonic() + seconds, Random(SEED)  # noqa: S311
    times: list[float] = []
    asked = [MIX.arrival(rng, 0.0, "s", "t", batch=False) for _ in range(1000)]

    async def one(client: httpx.AsyncClient) -> None:
        while time.monotonic() < end:
            arrival, began = asked[len(times) % len(asked)], time.monotonic()
            await arm.ask(client, arrival, len(times), None)
            times.append(time.monotonic() - began)

    began = time.monotonic()
    async with _client() as client:
        await asyncio.gather(*[one(client) for _ in range(clients)])
    return len(times) / (time.monotonic() - began), statistics.median(times)


async def check(ours_: Arm, theirs: Arm) -> str | None:
    """What is wrong with the frames; None where nothing is."""
    async with _client() as client:
        for arrival in kinds():
            mine, peers = [(await arm.ask(client, arrival, 7, None)).data for arm in (ours_, theirs)]
            if arrival.kind == "video":
                problem = differs(mine, peers)
            else:
                a, b = (imaging.open_stored(data).tobytes() for data in (mine, peers))
                off = max(abs(x - y) for x, y in zip(a, b, strict=True))
                problem = None if off <= 1 else f"pictures of {arrival.size} are {off} levels apart"
            if problem is not None:
                return problem
    return None


def kinds() -> list[Arrival]:
    """One of each size."""
    return [
        Arrival(0.0, "s", "t", "standard", kind, ask.size, ask.steps, 1, 1.0)  # type: ignore[arg-type]
        for kind, asks in (("image", MIX.images), ("video", MIX.videos))
        for ask in asks
    ]


def _client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=TIMEOUT_S, limits=httpx.Limits(max_connections=None))


def best_plain(seconds: float) -> tuple[int, int, float]:
    """Replicas and threads with the most requests a second, and how many."""
    found = []
    for replicas, threads in ((1, 2), (2, 1)):
        with plain(replicas, threads) as arm:
            asyncio.run(closed_loop(arm, 2, 3.0))  # warm
            found.append((asyncio.run(closed_loop(arm, 4, seconds))[0], replicas, threads))
            print(f"{arm.name} saturates at {found[-1][0]:.2f} requests/s", file=sys.stderr, flush=True)
    rate, replicas, threads = max(found)
    return replicas, threads, rate


def main() -> int:
    args = parser(__doc__)
    args.add_argument("--seconds", type=float, default=60.0, help="of each trace")
    args.add_argument("--loads", type=float, nargs="+", default=[0.7, 1.0, 1.5])
    args.add_argument("--policies", nargs="+", choices=POLICIES, default=POLICIES)
    args.add_argument("--no-concurrency", action="store_true", help="leave out latency over concurrency")
    options = args.parse_args()
    quick = options.quick
    loads, seconds = ([1.0], 8.0) if quick else (options.loads, options.seconds)
    policies = ("slack",) if quick else options.policies
    replicas, threads, rate = (1, 2, 0.0) if quick else best_plain(10.0)
    same = {"denoiser.num_replicas": replicas, "denoiser.num_threads": threads}
    tallies: list[Tally] = []
    table: list[str] = []
    with contextlib.ExitStack() as peers:
        peer = peers.enter_context(plain(replicas, threads))
        alone = asyncio.run(isolated(peer, 1 if quick else 3))
        rate = rate or asyncio.run(closed_loop(peer, 4, 4.0))[0]
        traces = {load: agents(seconds, load * rate, SEED, MIX) for load in loads}
        tallies += [Tally(peer.name, load, asyncio.run(replay(peer, t, alone)), alone) for load, t in traces.items()]
        for policy in policies:
            with ours(policy, same | ({} if policy == "slack" else UNORDERED)) as arm:
                if (problem := asyncio.run(check(arm, peer))) is not None:
                    print(f"not reported: {problem}", file=sys.stderr)
                    return 1
                for load, trace in traces.items():
                    tallies.append(Tally(arm.name, load, asyncio.run(replay(arm, trace, alone)), alone))
                    print(tallies[-1].line(), file=sys.stderr, flush=True)
                if policy == "slack" and not (quick or options.no_concurrency):
                    for clients in CLIENTS:
                        both = [asyncio.run(closed_loop(each, clients, 6.0)) for each in (peer, arm)]
                        cells = "   ".join(f"{per_s:6.2f}/s {latency:6.2f} s" for per_s, latency in both)
                        table.append(f"{clients:7}   {cells}")
    print(f"alone, the plain deployment takes {', '.join(f'{size}: {s:.2f} s' for size, s in alone.items())}")
    print(f"load 1.0 is {rate:.2f} requests/s; traces of {seconds:g} s")
    print("load  arm                                sent  <= 1.5x   <= 3x  refused failed     p50     p95  batch max")
    for tally in sorted(tallies, key=lambda t: t.load):
        print(tally.line())
    if table:
        print("\nclients   plain: requests, median      ours")
        print("\n".join(table))
    publish(metrics(tallies), options.json)
    return 0


def metrics(tallies: Sequence[Tally]) -> dict[str, dict[str, object]]:
    """At load 1.0, as far as it was measured."""
    at = {t.arm.split(",")[1].strip() if t.arm.startswith("ours") else "plain": t for t in tallies if t.load == 1.0}
    found: dict[str, dict[str, object]] = {}
    if "slack" not in at:
        return found
    own = at["slack"]
    found["attainment"] = metric(own.in_time(TIGHT) / len(own.wanted), "share", ">= 0.6")
    found["goodput_vs_plain_ray_serve"] = metric(own.in_time(TIGHT) / max(at["plain"].in_time(TIGHT), 1), "x", ">= 3")
    if "sjf" in at:
        found["goodput_vs_sjf"] = metric(own.in_time(TIGHT) / max(at["sjf"].in_time(TIGHT), 1), "x", "> 1")
    return found


if __name__ == "__main__":
    sys.exit(main())
