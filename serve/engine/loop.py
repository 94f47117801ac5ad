"""The denoising loop of one replica: plan → step → publish, in a thread of its own. Knows neither Ray nor HTTP.

Trajectories join and leave between steps. Whoever submits one gets its updates through a callback, called in the
loop's thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from raydiance.serve.engine.engine import Engine
from raydiance.serve.engine.plan import plan
from raydiance.serve.engine.trajectory import Trajectory

log = logging.getLogger("ray.serve")


@dataclass(frozen=True, slots=True)
class Update:
    """After every step: the value itself. `error` is set when this trajectory, stepped alone, raised."""

    trajectory: Trajectory
    error: Exception | None = None


@dataclass(slots=True)
class _Member:
    id: str
    trajectory: Trajectory
    publish: Callable[[Update], None]


class DenoisingLoop:
    """Args:
    max_batch_size: trajectories in one forward.
    max_batch_tokens: tokens in one forward, over its trajectories.
    """

    def __init__(self, engine: Engine, *, max_batch_size: int, max_batch_tokens: int) -> None:
        self.engine = engine
        self.num_steps = 0
        self.busy_s = 0.0
        self._max_batch_size = max_batch_size
        self._max_batch_tokens = max_batch_tokens
        self._members: dict[str, _Member] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="denoising-loop", daemon=True)
        self._thread.start()

    def join(self, member_id: str, trajectory: Trajectory, publish: Callable[[Update], None]) -> None:
        """Steps it from the next step on. Raises ValueError if the id is here already."""
        with self._changed:
            if member_id in self._members:
                raise ValueError(f"trajectory {member_id} is being denoised already")
            self._members[member_id] = _Member(member_id, trajectory, publish)
            self._changed.notify()

    def leave(self, member_id: str) -> None:
        """Stops stepping it: at most the step in progress is finished."""
        with self._changed:
            self._members.pop(member_id, None)

    def stop(self) -> None:
        """Ends the thread after the step in progress."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def num_active(self) -> int:
        return len(self._members)

    def _run(self) -> None:
        while (members := self._wait()) is not None:
            started = time.perf_counter()
            for batch in self._plan(members):
                self._advance([m for m in batch if m.id in self._members])
            self.busy_s += time.perf_counter() - started

    def _wait(self) -> list[_Member] | None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._members) or self._stopping)
            return None if self._stopping else list(self._members.values())

    def _plan(self, members: list[_Member]) -> list[list[_Member]]:
        batches = plan(
            [self.engine.plan_item(m.trajectory) for m in members],
            max_batch_size=self._max_batch_size,
            max_batch_tokens=self._max_batch_tokens,
        )
        return [[members[i] for i in batch] for batch in batches]

    def _advance(self, batch: list[_Member]) -> None:
        """One step of each. What raises is halved until the culprit is alone: no request fails for its neighbour."""
        if not batch:
            return
        try:
            stepped = self.engine.step([m.trajectory for m in batch])
        except Exception as e:
            if isinstance(e, torch.OutOfMemoryError):
                torch.cuda.empty_cache()
            if len(batch) > 1:
                middle = len(batch) // 2
                self._advance(batch[:middle])
                self._advance(batch[middle:])
            else:
                log.exception("trajectory %s failed at step %d", batch[0].id, batch[0].trajectory.step_index)
                self.leave(batch[0].id)
                batch[0].publish(Update(batch[0].trajectory, e))
            return
        self.num_steps += len(batch)
        for member, trajectory in zip(batch, stepped, strict=True):
            member.trajectory = trajectory
            if trajectory.is_done:
                self.leave(member.id)
            member.publish(Update(trajectory))
