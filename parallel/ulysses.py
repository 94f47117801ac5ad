"""Ulysses: tokens are sharded outside of attention, heads inside of it (DeepSpeed-Ulysses, arXiv:2309.14509).

Heads can be exchanged in groups: while one is attended to, the next is under way, and so is what comes back of the one
before. And v, k and q can leave one by one, each while the next is projected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from raydiance.parallel.comm import Exchange
from raydiance.parallel.groups import Link
from raydiance.parallel.shards import head_spans, spans

Local = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor | None]]
"""q [B, L, H, D], k and v [B, S, H, D], of any strides → out [B, L, H, D], and the log-sum-exp, fp32 [B, H, L].

Only a ring needs the second. `functools.partial(kernels.attention.attention, backend=…, with_lse=…)` is one.
"""
Projection = Callable[[], torch.Tensor]
"""Makes q, k or v of this rank's tokens, [B, L_local, H, D]; called once."""


def check_qkv(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, num_queries: int, num_keys: int) -> None:
    """Raises ValueError where they are no [B, num_queries, H, D] and twice [B, num_keys, H, D] of one type."""
    if (
        not q.dtype == k.dtype == v.dtype
        or k.shape != v.shape
        or q.shape[:1] + q.shape[2:] != k.shape[:1] + k.shape[2:]
    ):
        shapes = ", ".join(f"{x.dtype} {list(x.shape)}" for x in (q, k, v))
        raise ValueError(f"q, k and v must have the same heads and type, not {shapes}")
    for name, x, number in (("q", q, num_queries), ("k", k, num_keys)):
        if x.dim() != 4 or x.shape[1] != number:
            raise ValueError(f"this rank's {name} must be [B, {number}, H, D], not {list(x.shape)}")


def check_lengths(
    lengths: Sequence[int], key_lengths: Sequence[int] | None, num_ranks: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many queries and how many keys each rank holds: as many where the keys' are None.

    Raises ValueError where they are not of `num_ranks` ranks.
    """
    queries = tuple(lengths)
    keys = queries if key_lengths is None else tuple(key_lengths)
    for each in (queries, keys):
        if len(each) != num_ranks:
            raise ValueError(f"{len(each)} lengths for {num_ranks} ranks")
    return queries, keys


class Ulysses:
    """Args:
    link: to the ranks of the ulysses axis.
    local: attends to the whole sequence with this rank's share of the heads; is not called without a head.
    lengths: how many queries each of them holds, in their order.
    key_lengths: how many keys; `lengths` where None.
    head_groups: in how many parts each rank's heads are exchanged.
    early: v, k and q leave as soon as each is projected; else at once.
    """

    def __init__(
        self,
        link: Link,
        local: Local,
        lengths: Sequence[int],
        head_groups: int = 1,
        key_lengths: Sequence[int] | None = None,
        early: bool = False,
    ) -> None:
        self.lengths, self.key_lengths = check_lengths(lengths, key_lengths, link.incoming.size)
        if head_groups < 1:
            raise ValueError(f"head_groups must be 1 or more, not {head_groups}")
        self.link = link
        self.local = local
        self.head_groups = head_groups
        self.early = early
        self._index = link.incoming.index

    def __call__(self, q: Projection, k: Projection, v: Projection) -> torch.Tensor:
        """→ [B, L_local, H, D], a view. Raises PeerLost, and ValueError as `check_qkv` does."""
        groups, (batch, num_queries, heads, width) = self._gather_all(q, k, v)
        shares = head_spans(heads, len(self.lengths), self.head_groups)
        leaving: list[Exchange] = []
        out = torch.empty(0)
        for share, arriving in zip(zip(*shares, strict=True), groups, strict=True):
            query, key, value = arriving()
            if not leaving:  # heads first: a rank's share is contiguous
                out = query.new_empty(heads, batch, num_queries, width)
            attended = self.local(query, key, value)[0] if query.shape[2] else query
            leaving.append(self.scatter(attended, out, share, self.lengths))
        for exchange in leaving:
            exchange.wait()
        return out.permute(1, 2, 0, 3)

    def _gather_all(
        self, q: Projection, k: Projection, v: Projection
    ) -> tuple[list[Callable[[], tuple[torch.Tensor, ...]]], torch.Size]:
        """Begins to collect all heads of the own share; by head group, what waits for q, k and v; the shape of q."""
        early: list[list[_Arriving]] = []
        value = v()
        shares = head_spans(value.shape[2], len(self.lengths), self.head_groups)
        by_group = list(zip(*shares, strict=True))
        if self.early:
            early.append([self.gather([value], share, self.key_lengths) for share in by_group])
        key = k()
        if self.early:
            early.append([self.gather([key], share, self.key_lengths) for share in by_group])
        query = q()
        check_qkv(query, key, value, self.lengths[self._index], self.key_lengths[self._index])
        if self.early:
            early.append([self.gather([query], share, self.lengths) for share in by_group])
            return [_reversed(parts) for parts in zip(*early, strict=True)], query.shape
        if self.lengths == self.key_lengths:
            return [
                _together([self.gather([query, key, value], share, self.lengths)]) for share in by_group
            ], query.shape
        return [
            _together([self.gather([query], share, self.lengths), self.gather([key, value], share, self.key_lengths)])
            for share in by_group
        ], query.shape

    def gather(self, tensors: Sequence[torch.Tensor], heads: Sequence[slice], lengths: Sequence[int]) -> _Arriving:
        """Begins to collect tensors of all tokens for the own ones of `heads`, [L, n, B, h, D]."""
        like, own = tensors[0], heads[self._index]
        gathered = like.new_empty(sum(lengths), len(tensors), like.shape[0], own.stop - own.start, like.shape[3])
        return _Arriving(gathered, self.send(tensors, heads, gathered.split(list(lengths))))

    def send(self, tensors: Sequence[torch.Tensor], heads: Sequence[slice], into: Sequence[torch.Tensor]) -> Exchange:
        """Begins to send each rank its heads of [B, L_local, H, D] tensors, and to fill `into` with the own ones."""
        sends = [torch.stack([x[:, :, span].transpose(0, 1) for x in tensors], dim=1) for span in heads]
        return self.link.incoming.all_to_all(sends, list(into))

    def scatter(
        self, attended: torch.Tensor, out: torch.Tensor, heads: Sequence[slice], lengths: Sequence[int]
    ) -> Exchange:
        """Begins to bring each rank its tokens of `attended` [B, L, h, D], and all heads into `out` [H, B, L, D]."""
        sends = [attended[:, span].permute(2, 0, 1, 3).contiguous() for span in spans(lengths)]
        return self.link.outgoing.all_to_all(sends, [out[span] for span in heads])


class _Arriving:
    """Tensors that are collected, stacked [L, n, B, h, D]; called, each of them [B, L, h, D]."""

    def __init__(self, gathered: torch.Tensor, exchange: Exchange) -> None:
        self._gathered = gathered
        self._exchange = exchange

    def __call__(self, pause: bool = True) -> tuple[torch.Tensor, ...]:
        self._exchange.wait(pause)
        return self._gathered.permute(1, 2, 0, 3, 4).unbind(0)


def _together(parts: Sequence[_Arriving]) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: tuple(tensor for part in parts for tensor in part())


def _reversed(parts: Sequence[_Arriving]) -> Callable[[], tuple[torch.Tensor, ...]]:
    """v, k and q, waited for in the order in which they were sent."""
    return lambda: tuple(reversed([tensor for part in parts for tensor in part()]))
