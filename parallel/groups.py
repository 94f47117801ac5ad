"""The process groups of a world, made once at start: for every set of ranks that a layout needs two communicators a
lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from raydiance.parallel import mesh
from raydiance.parallel.comm import Communicator
from raydiance.parallel.lanes import Lanes


@dataclass(frozen=True)
class Link:
    """How one rank talks to the others of a set: two communicators, so that neither waits for what is on the other."""

    incoming: Communicator
    outgoing: Communicator

    @property
    def bytes_sent(self) -> int:
        return self.incoming.bytes_sent + self.outgoing.bytes_sent


class Groups:
    """What a rank has of `mesh.groups`. Made by `open_groups`; `torch.distributed` itself is its caller's to close.

    Args:
    links: by ranks, one a lane.
    """

    def __init__(self, links: dict[tuple[int, ...], list[Link]], lanes: Lanes) -> None:
        self._links = links
        self.lanes = lanes

    def __getitem__(self, ranks: Sequence[int]) -> Link:
        """That of the lane which is running.

        Raises KeyError for ranks that share no axis of any layout, or are not this one's.
        """
        return self.link(ranks, self.lanes.index)

    def link(self, ranks: Sequence[int], lane: int) -> Link:
        """That of a lane: what is begun first on it arrives first."""
        return self._links[tuple(ranks)][lane]

    @property
    def bytes_sent(self) -> int:
        return sum(link.bytes_sent for link in self._all())

    def _all(self) -> list[Link]:
        return [link for links in self._links.values() for link in links]

    def check_idle(self) -> None:
        """To be called between steps. Raises ExchangeMisused where an exchange was begun and never waited for."""
        for link in self._all():
            link.incoming.check_idle()
            link.outgoing.check_idle()

    def settle(self) -> None:
        """To be called after a step that failed on all its ranks alike, before the next. Raises PeerLost."""
        for link in self._all():
            link.incoming.settle()
            link.outgoing.settle()

    def close(self) -> None:
        """Nothing can be begun after it. Raises as `check_idle` does."""
        for link in self._all():
            link.incoming.close()
            link.outgoing.close()


def open_groups(deadline_s: float, start_deadline_s: float = 60.0, num_lanes: int = 2) -> Groups:
    """Called on every rank after `init_process_group`, whose backend (gloo, or NCCL with a `device_id`) is used.

    With NCCL the `device_id` matters: without it a group is made at its first exchange, in which all its ranks must
    take part, and a rank without a head does not.

    Args:
    deadline_s: how long a wait for an exchange may take.
    start_deadline_s: how long making a group may take.
    num_lanes: each has communicators of its own.
    """
    is_gloo = dist.get_backend() == "gloo"
    timeout = timedelta(seconds=start_deadline_s if is_gloo else deadline_s)
    lanes = Lanes()
    links: dict[tuple[int, ...], list[Link]] = {}
    for ranks in mesh.groups(dist.get_world_size()):
        for _ in range(num_lanes):
            made = [dist.new_group(list(ranks), timeout=timeout) for _ in range(2)]  # on every rank
            if dist.get_rank() in ranks:
                link = Link(*(Communicator(ranks, group, deadline_s, lanes.switch) for group in made))
                links.setdefault(ranks, []).append(link)
    return Groups(links, lanes)
