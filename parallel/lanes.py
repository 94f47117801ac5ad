"""Lanes: calls that take turns on one rank, so that one computes while another's exchange is under way.

One lane runs at a time, and hands over where it would wait (`switch`): which one is next does not depend on time, so
that all ranks post their exchanges in one order. The first lane is the caller's own thread, the others have one each:
torch's settings, among them CUDA's current stream, are a thread's own.

    wait for A's exchange    B computes, begins its exchange, would wait for it    A goes on
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

from raydiance.parallel.errors import LaneLost

T = TypeVar("T")


class Lanes:
    """Attributes:
    num_switches: how often a lane has handed over to another.
    """

    def __init__(self) -> None:
        self.num_switches = 0
        self._turns: list[threading.Semaphore] = [threading.Semaphore(0)]
        self._threads: list[_Lane] = []
        self._alive: list[int] = []
        self._current = 0
        self._error: BaseException | None = None

    @property
    def index(self) -> int:
        """Of the lane that is running; 0 where there are no lanes."""
        return self._current

    @property
    def num_running(self) -> int:
        """Lanes that have not ended."""
        return len(self._alive)

    @property
    def are_running(self) -> bool:
        return bool(self._alive)

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """What each call returns. Raises what the first that failed has raised; the others then end at their next turn.

        Raises ValueError inside of a lane, or for no call.
        """
        if self._alive or not calls:
            raise ValueError("lanes are running already" if self._alive else "no call to run")
        while len(self._turns) < len(calls):
            self._turns.append(threading.Semaphore(0))
            self._threads.append(_Lane())
        self._alive, self._current, self._error = list(range(len(calls))), 0, None
        futures = [
            thread.submit(functools.partial(self._take_part, i, call))
            for i, (thread, call) in enumerate(zip(self._threads, calls[1:], strict=False), 1)
        ]
        own: Future[T] = Future()
        try:
            own.set_result(self._take_part(0, calls[0], waits=False))
        except BaseException as error:  # noqa: BLE001 - raised below, when all lanes have ended
            own.set_exception(error)
        ended = [own, *futures]
        for future in ended:
            future.exception()
        failure, self._error = self._error, None
        if failure is None:
            return [future.result() for future in ended]
        try:
            raise failure
        finally:
            del failure, own, futures, ended, future  # they hold what its frames hold: memory that the next try needs

    def switch(self) -> None:
        """Hands over to the next lane, and returns when it is this one's turn again. Outside of lanes it does nothing.

        Raises LaneLost where another lane has failed meanwhile.
        """
        if len(self._alive) > 1:
            me = self._current
            self._hand_over()
            self._turns[me].acquire()
        if self._alive and self._error is not None:
            raise LaneLost(f"another lane failed: {self._error}")

    def _take_part(self, index: int, call: Callable[[], T], waits: bool = True) -> T:
        if waits:
            self._turns[index].acquire()
        try:
            if self._error is not None:
                raise LaneLost(f"another lane failed: {self._error}")
            return call()
        except BaseException as error:
            self._error = self._error or error
            raise
        finally:
            self._hand_over(leaves=True)

    def _hand_over(self, leaves: bool = False) -> None:
        me = self._current
        later = [i for i in self._alive if i > me] + [i for i in self._alive if i < me]
        if leaves:
            self._alive.remove(me)
        if later:
            self._current = later[0]
            self.num_switches += 1
            self._turns[later[0]].release()
        else:
            self._current = 0


class _Lane:
    """A thread for a lane, kept: a thread's first parallel operation is slow."""

    def __init__(self) -> None:
        self._todo: SimpleQueue[tuple[Callable[[], Any], Future[Any], bool, Any]] = SimpleQueue()
        threading.Thread(target=self._live, name="lane", daemon=True).start()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        caller = torch.cuda.current_stream() if torch.cuda.is_available() else None
        self._todo.put((call, future, torch.is_grad_enabled(), caller))
        return future

    def _live(self) -> None:
        while True:
            self._do(*self._todo.get())  # between calls nothing of the last one is held

    def _do(self, call: Callable[[], T], future: Future[T], with_grad: bool, caller: Any) -> None:
        try:
            with torch.set_grad_enabled(with_grad):
                future.set_result(call() if caller is None else _beside(caller, call))
        except BaseException as error:  # noqa: BLE001 - whoever asked for the result gets it
            future.set_exception(error)
        finally:
            del call, future  # which has this frame, by what was raised


def _beside(caller: torch.cuda.Stream, call: Callable[[], T]) -> T:
    """On a stream of its own, which begins after what the caller's holds, and which the caller's then waits for.

    Not yet run on a GPU.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(caller)
    with torch.cuda.stream(stream):
        result = call()
    caller.wait_stream(stream)
    return result
