"""Independent forwards dealt out over ranks: guidance branches over the cfg axis, a picture's tiles over all ranks.

Each rank runs every n-th of them, and sends what one returned while it runs the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import torch

from raydiance.parallel.comm import Communicator, Exchange

Wanted = Literal["all", "first"]


class Forward(Protocol):
    """Something to run, of which is known what it returns: receivers make room before it has run."""

    @property
    def call(self) -> Callable[[], torch.Tensor]: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...


class Spread:
    """Args:
    comm: to the ranks that share the forwards. Nothing else may use it while they run; what is exchanged inside of a
        forward goes over other communicators.
    closes: whether what is raised closes the communicator: of what follows, ranks could take one thing for another.
        Not where whoever gives the ranks their orders gives no more, unless all of them have failed alike.
    wanted: on which ranks the results are. On the first only, the others are sent nothing, and cannot go on from them.
    """

    def __init__(self, comm: Communicator, wanted: Wanted = "all", *, closes: bool = True) -> None:
        self.comm = comm
        self.closes = closes
        self.wanted = wanted

    @property
    def concurrency(self) -> int:
        return self.comm.size

    def run(self, forwards: Sequence[Forward]) -> list[torch.Tensor]:
        """What each returned, in their order: the same bits on every rank. Nothing at all where they are not wanted.

        Every rank calls it, with forwards of the same shapes in the same order.

        Raises:
            PeerLost: another rank died, or its results were late by the deadline, of each wait; so it is too where one
                of its forwards raised.
            ValueError: a forward returned something else than it had said.
            and whatever a forward that is run here raises.
        """
        results: list[torch.Tensor] = []
        exchanges: list[Exchange] = []
        is_done = False
        try:
            for start in range(0, len(forwards), self.comm.size):
                turn = forwards[start : start + self.comm.size]
                rooms = [self._made(f) if i == self.comm.index else self._room(f) for i, f in enumerate(turn)]
                exchanges.append(self._exchange(rooms))
                results += rooms
            is_done = True
        finally:
            for exchange in exchanges:  # others have begun them too
                exchange.wait()
            if self.closes and not is_done:
                self.comm.close()
        return results if self._wants(self.comm.index) else []

    def _wants(self, index: int) -> bool:
        return self.wanted == "all" or index == 0

    def _made(self, forward: Forward) -> torch.Tensor:
        made = forward.call().contiguous()
        said, found = (forward.shape, forward.dtype), (tuple(made.shape), made.dtype)
        if found != said or made.device.type != forward.device.type:
            raise ValueError(f"a forward said {said} on {forward.device} and returned {found} on {made.device}")
        return made

    def _room(self, forward: Forward) -> torch.Tensor:
        shape = forward.shape if self._wants(self.comm.index) else (0,)
        return torch.empty(shape, dtype=forward.dtype, device=forward.device)

    def _exchange(self, rooms: list[torch.Tensor]) -> Exchange:
        """Begins to send this rank's of a turn's results, and to fill the others'. The last turn may be short."""
        size, index = self.comm.size, self.comm.index
        nothing = rooms[0].new_empty(0)
        own = rooms[index] if index < len(rooms) else nothing
        sends = [own if self._wants(i) and i != index else nothing for i in range(size)]
        receives = [rooms[i] if i < len(rooms) and i != index else nothing for i in range(size)]
        return self.comm.all_to_all(sends, receives)
