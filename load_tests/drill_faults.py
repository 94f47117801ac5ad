"""What is done to a cluster: each fault by its name, how it is injected, and how it is made good afterwards."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Literal

from drill_processes import Process, send
from drill_stores import Disk
from drill_world import TITLES, World

AWAY_S = 20.0
BUSY_S = 4.0
NODE_AWAY_S = 12.0
FROZEN_S = 40.0
SERVING = ("denoiser", "encoder", "decoder", "dispatcher", "gateway")
Home = Literal["nodes", "ranks", "disk"]


@dataclass(frozen=True)
class Fault:
    """Args:
    home: the cluster that it is done to.
    inject: returns when it has happened, and has been made good where that takes a hand: with a word on what was done.
    is_long: the load is of generations that take longer than the 20 s of grace that Serve gives a replica that ends.
        at: the share of its steps, from and to, that a job has behind it when it happens.
    """

    what: str
    home: Home
    inject: Callable[[World, random.Random], str]
    is_long: bool = False
    at: tuple[float, float] = (0.25, 0.7)


def _one(world: World, kind: str, chance: random.Random) -> Process:
    if not (found := world.find(kind)):
        raise RuntimeError(f"there is no process of a {kind}")
    return chance.choice(found)


def _kill(kind: str) -> Callable[[World, random.Random], str]:
    def inject(world: World, chance: random.Random) -> str:
        victim = _one(world, kind, chance)
        send([victim.pid], SIGKILL)
        return ""

    return inject


def _kill_busy(kind: str) -> Callable[[World, random.Random], str]:
    """Stopped first, until something waits for it for sure."""

    def inject(world: World, chance: random.Random) -> str:
        victim = _one(world, kind, chance)
        send([victim.pid], SIGSTOP)
        time.sleep(BUSY_S)
        send([victim.pid], SIGKILL)
        return f"stopped for {BUSY_S:g} s before, so that it had work"

    return inject


def _stop_rank(world: World, chance: random.Random) -> str:
    """It is killed by its replica, when the step's deadline has passed."""
    send([_one(world, "rank", chance).pid], SIGSTOP)
    return f"a rank is noticed after parallel.step_deadline_s={world.options['parallel.step_deadline_s']}"


def node_of(world: World, kind: str) -> str:
    """A node that has a replica of a kind, and beside it as much as any."""
    nodes = {name: world.of_node(name) for name in world.raylets() if name != "head"}
    having = {name: processes for name, processes in nodes.items() if any(p.is_a(TITLES[kind]) for p in processes)}
    if not having:
        raise RuntimeError(f"no node but the head has a {kind}")
    return max(having, key=lambda name: sum("ServeReplica" in p.title for p in having[name]))


def _kill_node(world: World, chance: random.Random) -> str:
    """All its processes at once; a new node joins a while later."""
    name = node_of(world, chance.choice(["dispatcher", "denoiser"]))
    processes = world.of_node(name)
    send([p.pid for p in processes], SIGKILL)
    replicas = sorted(p.title.split(":")[-1].split(".")[0] for p in processes if "ServeReplica" in p.title)
    time.sleep(NODE_AWAY_S)
    world.ask("forget_node", name=name)
    world.ask("add_node")
    return f"with it {', '.join(replicas)}"


def _stop_raylet(world: World, chance: random.Random) -> str:
    """The node's replicas run on, and nobody knows of them; when it wakes it finds itself dead."""
    name = node_of(world, chance.choice(["dispatcher", "denoiser"]))
    pid = world.raylets()[name]
    replicas = sorted(p.title.split(":")[-1].split(".")[0] for p in world.of_node(name) if "ServeReplica" in p.title)
    send([pid], SIGSTOP)
    world.ask("add_node")
    time.sleep(FROZEN_S)
    send([pid], SIGCONT)
    time.sleep(5)
    world.ask("forget_node", name=name)
    return f"on it {', '.join(replicas)}"


def _scale_down(world: World, _: random.Random) -> str:
    before = world.options["denoiser.num_replicas"]
    began = time.monotonic()
    world.scale({"Denoiser-tiny": 1})
    _wait_count(world, "denoiser", 1)
    took_s = time.monotonic() - began
    world.scale({"Denoiser-tiny": before})
    return f"{before} to 1 denoisers in {took_s:.0f} s, and back"


def _upgrade(world: World, _: random.Random) -> str:
    """Another option is another version: all replicas are replaced."""
    old = {p.pid for kind in SERVING for p in world.find(kind)}
    other = 63 if world.options.get("denoiser.max_active") != 63 else 64
    began = time.monotonic()
    world.redeploy(denoiser__max_active=other)
    while left := old & {p.pid for p in world.processes()}:
        if time.monotonic() - began > 240:
            raise RuntimeError(f"{len(left)} of {len(old)} old replicas are still there")
        time.sleep(0.3)
    return f"{len(old)} replicas replaced in {time.monotonic() - began:.0f} s"


def _wait_count(world: World, kind: str, count: int, timeout_s: float = 120) -> None:
    end = time.monotonic() + timeout_s
    while len(world.find(kind)) > count:
        if time.monotonic() > end:
            raise RuntimeError(f"there are still {len(world.find(kind))} of {kind}")
        time.sleep(0.3)


def _restart(world: World, _: random.Random) -> str:
    world.kill()
    began = time.monotonic()
    world.start()
    return f"back after {time.monotonic() - began:.0f} s"


def _database_away(world: World, _: random.Random) -> str:
    assert world.database is not None
    world.database.stop()
    time.sleep(AWAY_S)
    world.database.start()
    return ""


def _store_away(world: World, _: random.Random) -> str:
    world.artifacts.stop()
    time.sleep(AWAY_S)
    world.artifacts.start()  # type: ignore[union-attr]
    return ""


def _disk_full(world: World, _: random.Random) -> str:
    disk = world.artifacts
    assert isinstance(disk, Disk)
    disk.fill()
    time.sleep(AWAY_S)
    disk.empty()
    return f"for {AWAY_S:g} s"


FAULTS: Mapping[str, Fault] = {
    "denoiser": Fault("SIGKILL of a denoiser", "nodes", _kill("denoiser")),
    "dispatcher": Fault("SIGKILL of the dispatcher", "nodes", _kill("dispatcher")),
    "node": Fault("SIGKILL of all processes of a node", "nodes", _kill_node),
    "upgrade": Fault("rolling upgrade: every replica is replaced", "nodes", _upgrade),
    "scale-down": Fault("2 denoisers to 1, under generations longer than the grace period", "nodes", _scale_down, True),
    "encoder": Fault("SIGKILL of a text encoder", "nodes", _kill_busy("encoder"), at=(0.8, 1.0)),
    "decoder": Fault("SIGKILL of a VAE decoder", "nodes", _kill_busy("decoder"), at=(0.8, 1.0)),
    "ingress": Fault("SIGKILL of an ingress replica", "nodes", _kill("gateway")),
    "controller": Fault("SIGKILL of the Serve controller", "nodes", _kill("controller")),
    "proxy": Fault("SIGKILL of the HTTP proxy", "nodes", _kill("proxy")),
    "raylet-stopped": Fault("SIGSTOP of a node's raylet", "nodes", _stop_raylet),
    "database-away": Fault("PostgreSQL stopped for 20 s", "nodes", _database_away),
    "store-away": Fault("the S3 server stopped for 20 s", "nodes", _store_away),
    "restart": Fault("SIGKILL of every process of the cluster, and a new one", "nodes", _restart),
    "rank": Fault("SIGKILL of a rank", "ranks", _kill("rank")),
    "rank-stopped": Fault("SIGSTOP of a rank", "ranks", _stop_rank),
    "disk-full": Fault("the artifact folder's disk full for 20 s", "disk", _disk_full),
}
"""In the order in which they are run."""

RANDOM = ("denoiser", "dispatcher", "node", "encoder", "decoder", "ingress", "controller", "proxy", "raylet-stopped",
          "database-away", "store-away", "upgrade", "scale-down")  # fmt: skip
WEIGHTS = {"node": 0.5, "raylet-stopped": 0.3, "database-away": 0.3, "store-away": 0.3, "upgrade": 0.3,
           "scale-down": 0.4, "denoiser": 3.0, "dispatcher": 2.0}  # fmt: skip


def picked(seed: int, count: int, names: Sequence[str] = RANDOM) -> list[str]:
    """Faults in a random order that the seed gives, each kind once at least where there is room for it."""
    chance = random.Random(seed)  # noqa: S311 - to be had again
    once = list(names) if count >= len(names) else []
    rest = chance.choices(names, [WEIGHTS.get(name, 1.0) for name in names], k=count - len(once))
    found = once + rest
    chance.shuffle(found)
    return found
