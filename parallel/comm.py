"""Asynchronous exchanges among a few ranks, point to point, each wait with a deadline.

    exchange = communicator.all_to_all(sends, receives)   # posted, under way
    …                                                     # compute
    exchange.wait()                                       # now `receives` may be read and `sends` written

Receives are posted before sends: gloo then uses both directions of a link at once, which its own all-to-all does not
always do. The same calls go to NCCL, batched into one launch; that has not been run on a GPU yet. There `wait()` makes
the current stream wait and not the host, and the deadline is the process group's own timeout.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType

import torch
import torch.distributed as dist

from raydiance.parallel.errors import ExchangeMisused, PeerLost

SHORTEST_WAIT_S = 0.001  # a timeout of 0 means for ever
CLOCKS_DIFFER_S = 0.01  # gloo's timer counts whole milliseconds and may end before ours


class Exchange:
    """Tensors under way. They are held until `wait()`, which has to be called once."""

    def __init__(
        self,
        owner: Communicator,
        what: str,
        works: list[tuple[dist.Work, tuple[int, ...]]],
        tensors: list[torch.Tensor],
    ) -> None:
        self.what = what
        self._owner = owner
        self._works = works
        self._tensors = tensors
        self._is_waited = False

    def wait(self, pause: bool = True) -> None:
        """Returns when all is received and sent.

        Args:
            pause: let another lane compute meanwhile, where there is one.

        Raises PeerLost where a rank died or the deadline passed, ExchangeMisused when called again.
        """
        if self._is_waited:
            raise ExchangeMisused(f"{self.what} was waited for already")
        if pause:
            self._owner.pause()
        self._is_waited = True
        self._owner.finish(self, self._works)
        self._tensors.clear()


class Communicator:
    """One way of talking among `ranks`: what is posted on it keeps its order, what is on another does not wait for it.

    Args:
    ranks: of the whole world; their order is that of the lists given to `all_to_all`, and that of the ring.
    group: a process group of just these ranks.
    deadline_s: how long a wait may take.
    pause: called before a wait.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        group: dist.ProcessGroup,
        deadline_s: float,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        if deadline_s <= 0:
            raise ValueError(f"deadline_s must be above 0, not {deadline_s}")
        self.ranks = tuple(ranks)
        self.rank = dist.get_rank()
        if self.rank not in self.ranks:
            raise ValueError(f"rank {self.rank} is not among ranks {list(self.ranks)}")
        self.index = self.ranks.index(self.rank)
        self.deadline_s = deadline_s
        self.pause = pause
        self.bytes_sent = 0
        self._group = group
        self._pending: list[Exchange] = []
        self._broken: str | None = None

    @property
    def size(self) -> int:
        return len(self.ranks)

    def all_to_all(self, sends: Sequence[torch.Tensor], receives: Sequence[torch.Tensor]) -> Exchange:
        """Sends `sends[i]` to the i-th rank and fills `receives[i]` from it; the own part is copied at once.

        All are contiguous. Both sides must know the sizes; what is empty is not sent.
        """
        if len(sends) != self.size or len(receives) != self.size:
            raise ValueError(f"{len(sends)} sends and {len(receives)} receives among {self.size} ranks")
        receives[self.index].copy_(sends[self.index])
        others = [(self.index + step) % self.size for step in range(1, self.size)]
        return self._post(
            "an all-to-all", [(sends[i], self.ranks[i]) for i in others], [(receives[i], self.ranks[i]) for i in others]
        )

    def ring(self, send: torch.Tensor, receive: torch.Tensor) -> Exchange:
        """Sends to the next rank and fills `receive` from the one before; both contiguous."""
        after, before = (self.ranks[(self.index + step) % self.size] for step in (1, -1))
        return self._post("a ring exchange", [(send, after)], [(receive, before)])

    def send(self, tensor: torch.Tensor, rank: int) -> Exchange:
        """To one rank, of the whole world's; it must be one of these."""
        return self._post("a message", [(tensor, rank)], [])

    def receive(self, tensor: torch.Tensor, rank: int) -> Exchange:
        """The counterpart of `send`."""
        return self._post("a message", [], [(tensor, rank)])

    def finish(self, exchange: Exchange, works: list[tuple[dist.Work, tuple[int, ...]]]) -> None:
        """What `Exchange.wait` does."""
        self._pending.remove(exchange)
        end = time.monotonic() + self.deadline_s
        for work, peers in works:
            try:
                if self._has_streams:
                    work.wait()
                else:
                    work.wait(timedelta(seconds=max(end - time.monotonic(), SHORTEST_WAIT_S)))
            except RuntimeError as error:
                raise self._lost(peers, exchange.what, error, time.monotonic() >= end - CLOCKS_DIFFER_S) from error

    def check_idle(self) -> None:
        """Raises ExchangeMisused where an exchange was begun and never waited for."""
        if self._pending:
            what = ", ".join(exchange.what for exchange in self._pending)
            raise ExchangeMisused(f"never waited for: {what} of rank {self.rank} with ranks {list(self.ranks)}")

    def settle(self) -> None:
        """Waits for what was begun and never waited for, because a step failed. On all ranks alike, and in one order.

        Raises PeerLost.
        """
        for exchange in list(self._pending):
            exchange.wait(pause=False)

    def close(self) -> None:
        """Nothing can be begun after it. Raises as `check_idle` does."""
        self._broken = self._broken or "it was closed"
        self.check_idle()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.close()

    @property
    def _has_streams(self) -> bool:
        return dist.get_backend(self._group) != "gloo"

    def _post(
        self, what: str, sends: list[tuple[torch.Tensor, int]], receives: list[tuple[torch.Tensor, int]]
    ) -> Exchange:
        if self._broken is not None:
            raise ExchangeMisused(f"{what} begun with ranks {list(self.ranks)}, but {self._broken}")
        tensors = [tensor for tensor, _ in (*sends, *receives)]
        if not all(tensor.is_contiguous() for tensor in tensors):
            raise ValueError(f"{what} takes contiguous tensors only")
        todo = [(dist.irecv, *each) for each in receives] + [(dist.isend, *each) for each in sends]
        todo = [each for each in todo if each[1].numel()]
        peers = [peer for _, _, peer in todo]
        try:
            ops = [dist.P2POp(op, tensor, peer, self._group) for op, tensor, peer in todo]
            works = dist.batch_isend_irecv(ops) if ops else []
        except RuntimeError as error:
            raise self._lost(tuple(dict.fromkeys(peers)), what, error, late=False) from error
        self.bytes_sent += sum(tensor.nbytes for tensor, _ in sends)
        # gloo gives one work an operation, NCCL one for all
        of = [(peer,) for peer in peers] if len(works) == len(peers) else [tuple(dict.fromkeys(peers))] * len(works)
        exchange = Exchange(self, what, list(zip(works, of, strict=True)), tensors)
        self._pending.append(exchange)
        return exchange

    def _lost(self, peers: tuple[int, ...], what: str, error: RuntimeError, late: bool) -> PeerLost:
        why = f"no answer within {self.deadline_s:g} s" if late else str(error).strip().splitlines()[0]
        lost = PeerLost(self.rank, peers, f"{what} with ranks {list(self.ranks)}", why)
        self._broken = str(lost)
        return lost
