"""The processes of a replica's ranks: plain Ray actors in its placement group, watched, and ended together."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray.exceptions import RayError, RayTaskError, UnserializableException
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raydiance.serve.engine import memory
from raydiance.serve.engine.fleet import RanksLost

LOOPBACK = "127.0.0.1"
_listeners: dict[str, socket.socket] = {}


@dataclass(frozen=True, slots=True)
class Place:
    """Of a process. `node` is the node's id; `gpus` are those of the node that are set aside for it."""

    node: str
    address: str
    pid: int
    gpus: tuple[str, ...]


def here() -> Place:
    context = ray.get_runtime_context()
    gpus = context.get_accelerator_ids()["GPU"]
    return Place(context.get_node_id(), ray.util.get_node_ip_address(), os.getpid(), tuple(gpus))


def open_meeting(one_node: bool) -> str:
    """`tcp://HOST:PORT`, where ranks will meet whose first is this process. It listens already, on loopback for ranks
    of one node, else on the node's own address, and nowhere else; `meet` takes it up."""
    address = LOOPBACK if one_node else ray.util.get_node_ip_address()
    listener = socket.create_server((address, 0))
    meeting = f"tcp://{address}:{listener.getsockname()[1]}"
    _listeners[meeting] = listener
    return meeting


def meet(rank: int, world: int, meeting: str, device: torch.device, timeout_s: float) -> None:
    """Begins `torch.distributed`: NCCL for a GPU, else gloo. Returns when all ranks are there.

    Args:
        meeting: as `open_meeting` gave it in the process of rank 0.
        timeout_s: for that, and for what is exchanged without a deadline of its own.
    """
    address, port = meeting.removeprefix("tcp://").rsplit(":", 1)
    if address == LOOPBACK:
        os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    timeout = timedelta(seconds=timeout_s)
    listening = {"master_listen_fd": _listeners.pop(meeting).detach()} if rank == 0 else {}
    open_store: Any = dist.TCPStore  # type: ignore[attr-defined]
    store = open_store(address, int(port), world, rank == 0, timeout, **listening)
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=store,
        world_size=world,
        rank=rank,
        timeout=timeout,
        device_id=device if on_gpu else None,
    )


def device_of_rank(device: str) -> torch.device:
    """A rank sees one GPU alone."""
    return torch.device("cuda", 0) if device == "cuda" else torch.device(device)


class RankProcess:
    """What every rank's actor can do."""

    def where(self) -> Place:
        return here()

    def open_meeting(self, one_node: bool) -> str:
        return open_meeting(one_node)

    @ray.method(concurrency_group="watch")
    def watch(self) -> None:
        """Never returns: it fails when the process dies, and so tells of it."""
        threading.Event().wait()


class Processes:
    """Actors of one class, in the bundles of a placement group after the first, which is their replica's.

    Args:
        kind: a `RankProcess`.
        device: `cuda` or `cpu`.
        first_rank: the rank of the first of them.
        start_deadline_s: for all to be placed and to answer.

    Attributes:
        actors, places: by rank.
    """

    def __init__(
        self,
        kind: type[RankProcess],
        group: PlacementGroup,
        count: int,
        *,
        device: str,
        num_cpus: float,
        num_gpus: float,
        start_deadline_s: float,
        first_rank: int = 0,
    ) -> None:
        watched: Any = ray.remote(concurrency_groups={"watch": 1})  # type: ignore[call-overload]
        actor = watched(kind)
        self.actors: list[Any] = [
            actor.options(
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=i + 1),
                runtime_env={"env_vars": memory.environment(device)},
            ).remote()
            for i in range(count)
        ]
        self.places: list[Place] = ray.get([a.where.remote() for a in self.actors], timeout=start_deadline_s)
        self._first_rank = first_rank
        self._node = ray.get_runtime_context().get_node_id()

    @property
    def pids(self) -> list[int]:
        return [place.pid for place in self.places]

    def arrange(self, order: Sequence[int]) -> None:
        """Gives ranks in another order; to be called before any is used."""
        self.actors = [self.actors[i] for i in order]
        self.places = [self.places[i] for i in order]

    def watch(self, lost: Callable[[RanksLost], None]) -> None:
        """Calls `lost`, in a thread of its own, when the first of them has died."""
        calls = {actor.watch.remote(): i for i, actor in enumerate(self.actors, self._first_rank)}

        def wait() -> None:
            (ended,), _ = ray.wait(list(calls))
            error = RanksLost(f"rank {calls[ended]} has died")
            error.__cause__ = error_of(ended)
            lost(error)

        threading.Thread(target=wait, name="watch-ranks", daemon=True).start()

    def kill(self) -> None:
        """Ends all at once; one that is stopped too, where it is on this node."""
        for place in self.places:
            if place.node == self._node:
                try:
                    os.kill(place.pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        for actor in self.actors:
            ray.kill(actor)


def error_of(ref: Any) -> Exception | None:
    """What a call that has ended raised: the cause, where it was raised inside of the actor."""
    try:
        ray.get(ref)
    except RayTaskError as error:
        if type(error.cause) is RayError:  # Ray's words for what cannot be pickled
            return RuntimeError(str(error.cause))
        return error.cause if isinstance(error.cause, Exception) else error
    except UnserializableException as error:
        return RuntimeError(str(error))
    except RayError as error:
        return error
    return None
