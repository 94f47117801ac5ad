"""Ulysses: tokens are sharded outside of attention, heads inside of it (DeepSpeed-Ulysses, arXiv:2309.14509).

Heads are exchanged in groups: the next group is under way while the current one is attended to, and so is what comes
back of the ones before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from raydiance.parallel.comm import Exchange
from raydiance.parallel.groups import Link
from raydiance.parallel.shards import head_spans, spans

Local = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor | None]]
"""q, k, v [B, L, H, D], of any strides → out [B, L, H, D], and the log-sum-exp of the scores, fp32 [B, H, L].

Only a ring needs the second. `functools.partial(kernels.attention.attention, backend=…, with_lse=…)` is one.
"""


def check_qkv(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, num_tokens: int) -> None:
    """Raises ValueError where the three differ or are no [B, num_tokens, H, D]."""
    if not q.shape == k.shape == v.shape or not q.dtype == k.dtype == v.dtype:
        shapes = ", ".join(f"{x.dtype} {list(x.shape)}" for x in (q, k, v))
        raise ValueError(f"q, k and v must have one shape and type, not {shapes}")
    if q.dim() != 4 or q.shape[1] != num_tokens:
        raise ValueError(f"this rank's q must be [B, {num_tokens}, H, D], not {list(q.shape)}")


class Ulysses:
    """Args:
    link: to the ranks of the ulysses axis.
    local: attends to the whole sequence with this rank's share of the heads; is not called without a head.
    lengths: how many tokens each of them holds, in their order.
    head_groups: in how many parts each rank's heads are exchanged; 1 is synchronous.
    """

    def __init__(self, link: Link, local: Local, lengths: Sequence[int], head_groups: int = 1) -> None:
        if len(lengths) != link.incoming.size:
            raise ValueError(f"{len(lengths)} lengths for {link.incoming.size} ranks")
        if head_groups < 1:
            raise ValueError(f"head_groups must be 1 or more, not {head_groups}")
        self.link = link
        self.local = local
        self.lengths = tuple(lengths)
        self.head_groups = head_groups
        self._index = link.incoming.index

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """[B, L_local, H, D] each → [B, L_local, H, D], a view. Raises PeerLost, and ValueError as `check_qkv` does."""
        check_qkv(q, k, v, self.lengths[self._index])
        batch, num_tokens, heads, width = q.shape
        shares = head_spans(heads, len(self.lengths), self.head_groups)
        out = q.new_empty(heads, batch, num_tokens, width)  # heads first: a rank's share is contiguous
        leaving = []
        gathered, arriving = self._gather(q, k, v, [share[0] for share in shares])
        for group in range(self.head_groups):
            arriving.wait()
            current = gathered
            if group + 1 < self.head_groups:
                gathered, arriving = self._gather(q, k, v, [share[group + 1] for share in shares])
            leaving.append(self._scatter(self._attend(current), out, [share[group] for share in shares]))
        for exchange in leaving:
            exchange.wait()
        return out.permute(1, 2, 0, 3)

    def _gather(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: list[slice]
    ) -> tuple[torch.Tensor, Exchange]:
        """Begins to collect q, k and v of the whole sequence for the own ones of `heads`, [L, 3, B, h, D]."""
        own = heads[self._index]
        gathered = q.new_empty(sum(self.lengths), 3, q.shape[0], own.stop - own.start, q.shape[3])
        sends = [torch.stack([x[:, :, span].transpose(0, 1) for x in (q, k, v)], dim=1) for span in heads]
        return gathered, self.link.incoming.all_to_all(sends, gathered.split(self.lengths))

    def _attend(self, gathered: torch.Tensor) -> torch.Tensor:
        """[L, 3, B, h, D] → [B, L, h, D]."""
        q, k, v = gathered.permute(1, 2, 0, 3, 4)
        return self.local(q, k, v)[0] if q.numel() else q

    def _scatter(self, attended: torch.Tensor, out: torch.Tensor, heads: list[slice]) -> Exchange:
        """Begins to bring each rank its tokens of `attended` [B, L, h, D], and all heads into `out` [H, B, L, D]."""
        sends = [attended[:, span].permute(2, 0, 1, 3).contiguous() for span in spans(self.lengths)]
        return self.link.outgoing.all_to_all(sends, [out[span] for span in heads])
