"""What goes wrong between ranks.

RuntimeError
├── PeerLost           another rank died, or did not answer by the deadline
├── ExchangeMisused    an exchange waited for twice or never, or begun on a communicator that is closed or broken
└── LaneLost           another lane of the same rank failed, so this one was ended
"""

from __future__ import annotations


class PeerLost(RuntimeError):
    """What was to be exchanged is not there; the communicator cannot be used any more.

    `rank` waited and `peers` did not answer, as ranks of the whole world.
    """

    def __init__(self, rank: int, peers: tuple[int, ...], what: str, why: str) -> None:
        super().__init__(rank, peers, what, why)
        self.rank = rank
        self.peers = peers
        self.what = what
        self.why = why

    def __str__(self) -> str:
        peers = "rank" if len(self.peers) == 1 else "ranks"
        return f"rank {self.rank} lost {peers} {', '.join(map(str, self.peers))} in {self.what}: {self.why}"


class ExchangeMisused(RuntimeError):
    pass


class LaneLost(RuntimeError):
    pass
