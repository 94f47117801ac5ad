"""Ring attention: each rank keeps its queries, keys and values go round (arXiv:2310.01889).

K and V travel as one message, into one of two buffers while the other is attended to. Partial results are merged by
their log-sum-exp in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from raydiance.kernels.attention import merge
from raydiance.parallel.groups import Link
from raydiance.parallel.ulysses import Local, Projection, check_lengths, check_qkv


class Ring:
    """Args:
    link: to the ranks of the ring axis.
    local: attends to one rank's keys, and returns the log-sum-exp; is not called without a query or a key.
    lengths: how many queries each of them holds, in their order.
    key_lengths: how many keys, one of them at least some; `lengths` where None.
    """

    def __init__(
        self, link: Link, local: Local, lengths: Sequence[int], key_lengths: Sequence[int] | None = None
    ) -> None:
        self.lengths, self.key_lengths = check_lengths(lengths, key_lengths, link.incoming.size)
        self.link = link
        self.local = local

    def __call__(self, q: Projection, k: Projection, v: Projection) -> torch.Tensor:
        """→ [B, L_local, H, D]. Raises PeerLost, and ValueError as `check_qkv` does."""
        value, key = v(), k()
        return self.attend(q(), key, value)[0]

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As `__call__`, with the log-sum-exp [B, H, L_local] in fp32; a `Local` for Ulysses."""
        comm, lengths = self.link.incoming, self.key_lengths
        check_qkv(q, k, v, self.lengths[comm.index], lengths[comm.index])
        batch, num_queries, heads, width = q.shape
        buffers = [k.new_empty(max(lengths), 2, batch, heads, width) for _ in range(2)]
        current, following = buffers
        torch.stack([k.transpose(0, 1), v.transpose(0, 1)], dim=1, out=current[: k.shape[1]])
        result: tuple[torch.Tensor, torch.Tensor] | None = None
        for step in range(comm.size):
            here, arriving = (lengths[(comm.index - step - late) % comm.size] for late in (0, 1))
            exchange = comm.ring(current[:here], following[:arriving]) if step + 1 < comm.size else None
            if here and q.numel():
                out, lse = self.local(q, *current[:here].permute(1, 2, 0, 3, 4))
                if lse is None:
                    raise ValueError("ring attention needs a local attention that returns the log-sum-exp")
                result = (out, lse) if result is None else merge(*result, out, lse)
            if exchange is not None:
                exchange.wait()
                current, following = following, current
        if result is None:
            return torch.empty_like(q), q.new_empty(batch, heads, num_queries, dtype=torch.float32)
        return result[0].type_as(q), result[1].float()
