"""Lanes: calls that take turns on one rank, so that one computes while another's exchange is under way.

One lane runs at a time, and hands over where it would wait (`switch`): which one is next does not depend on time, so
that all ranks post their exchanges in one order.

    wait for A's exchange    B computes, begins its exchange, would wait for it    A goes on

They are greenlets in the caller's thread. Threads were tried: on two cores with two ranks every turn woke a thread on
the other rank's core, and the same work took half as long again (docs/log.md). What torch keeps by thread, the current
CUDA stream and whether gradients are recorded, is put back at every turn.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from greenlet import getcurrent, greenlet

from raydiance.parallel.errors import LaneLost

T = TypeVar("T")


class Lanes:
    """Attributes:
    num_switches: how often a lane has handed over to another.
    """

    def __init__(self) -> None:
        self.num_switches = 0
        self._alive: list[int] = []
        self._current = 0
        self._hub: Any = None
        self._error: BaseException | None = None
        self._streams: list[Any] = []

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
        self._hub, self._error = getcurrent(), None
        results: dict[int, T] = {}
        lanes = [
            _Lane(partial(self._take_part, i, call, results), stream)
            for i, (call, stream) in enumerate(self._with_streams(calls))
        ]
        self._alive = list(range(len(lanes)))
        last = None
        while self._alive:
            later = [i for i in self._alive if last is None or i > last]
            self._current = (later or self._alive)[0]
            self.num_switches += last not in (None, self._current)
            last = self._current
            if lanes[last].go_on():
                self._alive.remove(last)
        for lane in lanes:
            lane.join()
        self._current, failure, self._error, self._hub = 0, self._error, None, None
        if failure is None:
            return [results[i] for i in range(len(calls))]
        try:
            raise failure
        finally:
            del failure, results, lanes, lane  # they hold what its frames hold: memory that the next try needs

    def switch(self) -> None:
        """Hands over to the next lane, and returns when it is this one's turn again. Outside of lanes it does nothing.

        Raises LaneLost where another lane has failed meanwhile.
        """
        if len(self._alive) > 1:
            self._hub.switch()
        if self._alive and self._error is not None:
            raise LaneLost(f"another lane failed: {self._error}")

    def _take_part(self, index: int, call: Callable[[], T], results: dict[int, T]) -> None:
        """A lane's life. What it raises is kept for `run`, which raises it when all have ended."""
        if self._error is not None:
            return  # another has failed before this one's first turn
        try:
            results[index] = call()
        except BaseException as error:  # noqa: BLE001 - see above
            self._error = self._error or error

    def _with_streams(self, calls: Sequence[Callable[[], T]]) -> list[tuple[Callable[[], T], Any]]:
        """The first lane keeps the caller's stream, each other has one of its own. Not yet run on a GPU."""
        if not torch.cuda.is_available():
            return [(call, None) for call in calls]
        while len(self._streams) < len(calls) - 1:
            self._streams.append(torch.cuda.Stream())
        current = torch.cuda.current_stream()
        return list(zip(calls, [current, *self._streams], strict=False))


class _Lane:
    """A greenlet, with what torch keeps by thread. Its stream begins after what the caller's holds."""

    def __init__(self, life: Callable[[], None], stream: Any) -> None:
        self._stream = stream
        self._with_grad = torch.is_grad_enabled()
        self._greenlet = greenlet(life)
        self._greenlet.gr_context = contextvars.copy_context()
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream())

    def go_on(self) -> bool:
        """Runs until it hands over or ends; whether it has ended."""
        with_grad, caller = torch.is_grad_enabled(), None if self._stream is None else torch.cuda.current_stream()
        torch.set_grad_enabled(self._with_grad)
        if self._stream is not None:
            torch.cuda.set_stream(self._stream)
        self._greenlet.switch()
        self._with_grad = torch.is_grad_enabled()
        torch.set_grad_enabled(with_grad)
        if caller is not None:
            torch.cuda.set_stream(caller)
        return bool(self._greenlet.dead)

    def join(self) -> None:
        """The caller's stream waits for it."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
