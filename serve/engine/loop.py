"""The denoising loop of one replica: plan → step → publish, in a thread of its own. Knows neither Ray nor HTTP.

Trajectories join and leave between steps. Whoever submits one gets its updates through a callback, called in the
loop's thread.

All of torch's work in the process belongs in that thread, loading included: every thread that runs a parallel operation
gets an OpenMP pool of its own, and with two pools on two cores a small step took 7 to 17% longer (docs/log.md).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from raydiance.serve.engine.engine import Engine
from raydiance.serve.engine.plan import plan
from raydiance.serve.engine.trajectory import Trajectory

log = logging.getLogger("ray.serve")


@dataclass(frozen=True, slots=True)
class Update:
    """After every step: the value itself; or what it raised when it began, or when it was stepped alone."""

    trajectory: Trajectory | None
    error: Exception | None = None


@dataclass(slots=True)
class _Member:
    id: str
    begin: Callable[[Engine], Trajectory]
    publish: Callable[[Update], None]
    trajectory: Trajectory | None = None


class DenoisingLoop:
    """Args:
    build: called in the loop's thread; what it raises, the constructor raises.
    max_batch_size: trajectories in one forward.
    max_batch_tokens: tokens in one forward, over its trajectories.
    """

    engine: Engine

    def __init__(self, build: Callable[[], Engine], *, max_batch_size: int, max_batch_tokens: int) -> None:
        self.num_steps = 0
        self.busy_s = 0.0
        self._max_batch_size = max_batch_size
        self._max_batch_tokens = max_batch_tokens
        self._members: dict[str, _Member] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._built: Future[Engine] = Future()
        self._thread = threading.Thread(target=self._live, args=(build,), name="denoising-loop", daemon=True)
        self._thread.start()
        self.engine = self._built.result()

    def join(self, member_id: str, begin: Callable[[Engine], Trajectory], publish: Callable[[Update], None]) -> None:
        """Begins it before the next step, and steps it from there. Raises ValueError if the id is here already."""
        with self._changed:
            if member_id in self._members:
                raise ValueError(f"trajectory {member_id} is being denoised already")
            self._members[member_id] = _Member(member_id, begin, publish)
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

    def _live(self, build: Callable[[], Engine]) -> None:
        try:
            engine = build()
        except Exception as e:  # noqa: BLE001 - the constructor raises it
            self._built.set_exception(e)
            return
        self._built.set_result(engine)
        self._run(engine)

    def _run(self, engine: Engine) -> None:
        while (members := self._wait()) is not None:
            started = time.perf_counter()
            ready = [m for m in members if m.trajectory is not None or self._begin(engine, m)]
            for batch in self._plan(engine, ready):
                self._advance(engine, [m for m in batch if m.id in self._members])
            self.busy_s += time.perf_counter() - started

    def _wait(self) -> list[_Member] | None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._members) or self._stopping)
            return None if self._stopping else list(self._members.values())

    def _begin(self, engine: Engine, member: _Member) -> bool:
        """Whether it is there to be stepped."""
        try:
            member.trajectory = member.begin(engine)
        except Exception as e:
            log.exception("trajectory %s could not begin", member.id)
            self._end(member, Update(None, e))
            return False
        if member.trajectory.is_done:
            self._end(member, Update(member.trajectory))
            return False
        return True

    def _end(self, member: _Member, update: Update) -> None:
        self.leave(member.id)
        member.publish(update)

    def _plan(self, engine: Engine, members: list[_Member]) -> list[list[_Member]]:
        batches = plan(
            [engine.plan_item(m.trajectory) for m in members if m.trajectory is not None],
            max_batch_size=self._max_batch_size,
            max_batch_tokens=self._max_batch_tokens,
        )
        return [[members[i] for i in batch] for batch in batches]

    def _advance(self, engine: Engine, batch: list[_Member]) -> None:
        """One step of each. What raises is halved until the culprit is alone: no request fails for its neighbour."""
        if not batch:
            return
        try:
            stepped = engine.step([m.trajectory for m in batch if m.trajectory is not None])
        except Exception as e:
            if isinstance(e, torch.OutOfMemoryError):
                torch.cuda.empty_cache()
            if len(batch) > 1:
                middle = len(batch) // 2
                self._advance(engine, batch[:middle])
                self._advance(engine, batch[middle:])
            else:
                log.exception("trajectory %s failed", batch[0].id)
                self._end(batch[0], Update(batch[0].trajectory, e))
            return
        self.num_steps += len(batch)
        for member, trajectory in zip(batch, stepped, strict=True):
            member.trajectory = trajectory
            if trajectory.is_done:
                self.leave(member.id)
            member.publish(Update(trajectory))
