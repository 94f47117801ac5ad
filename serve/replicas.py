"""How many denoisers of a model take work now, and how many can be had: what a dispatcher reckons with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ray.serve.handle import DeploymentHandle

from raydiance.serve.admission import Supply
from raydiance.serve.config import Config
from raydiance.serve.stages import loads

MIN_START_S = 1.0
LATE = 2.0
"""Times what a start takes: one that has been waited for longer may not come at all."""


class Replicas:
    """Belongs to the event loop that it is made in.

    Before the router of this process has told which replicas there are, there is none of a deployment that is scaled,
    and of another as many as are configured. Each of several dispatchers reckons with its share of them.

    Args:
        denoiser: its router is begun here: else it would be told of replicas with its first request.
    """

    def __init__(self, config: Config, denoiser: DeploymentHandle[Any]) -> None:
        self._share = 1 / config.dispatcher.num_replicas
        self._most = config.most_replicas("denoiser")
        is_scaled = config.autoscaling.denoiser.max_replicas is not None
        self._untold = 0 if is_scaled else self._most
        self._start_s = config.autoscaling.denoiser.start_s
        self._waiting_s = 0.0
        self._changed = asyncio.Event()
        self._watchers: list[Callable[[], None]] = []
        self._loop = asyncio.get_running_loop()
        loads.watch(self._tell)
        if isinstance(denoiser, DeploymentHandle):
            denoiser.options(method_name="generate")

    def count(self) -> float:
        return self._share * self._live()

    def _live(self) -> int:
        live = loads.live()
        return self._untold if live is None else len(live)

    def supply(self) -> Supply:
        """What is to be reckoned with: those that are here, and as many as can be had once they have started."""
        live = self._live()
        is_late = self._waiting_s > LATE * self._start_s
        most = max(live, 1 if is_late else self._most)
        return Supply(self._share * live, self._share * most, max(self._start_s - self._waiting_s, MIN_START_S))

    def told(self, start_s: float, waiting_s: float) -> None:
        """By the autoscaling. Args: start_s: until a replica serves; waiting_s: for one that was asked for."""
        self._start_s, self._waiting_s = start_s, waiting_s

    def watch(self, changed: Callable[[], None]) -> None:
        """Has it called when replicas have come or gone."""
        self._watchers.append(changed)

    async def some(self) -> None:
        """Returns when there is one: a request that waits in a handle keeps Serve from asking the policy."""
        while not self.count():
            self._changed.clear()
            await self._changed.wait()

    def _tell(self) -> None:
        """In the router's thread."""
        self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._changed.set()
        for changed in self._watchers:
            changed()
