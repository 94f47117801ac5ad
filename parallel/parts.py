"""Parts of each rank's tokens, each in a lane of its own, through one Ulysses attention.

All but attention works on tokens one by one, so what one part exchanges hides under the output projection, the
cross-attention, the feed-forward and the next layer's projections of the others. All parts attend to the keys of
all; whose turn it is follows from the order below alone.

    part 0   v k →          q →          attend, out →          … its next layer
    part 1          v k →          q →                 attend, out →          …
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from raydiance.parallel.comm import Exchange
from raydiance.parallel.groups import Link
from raydiance.parallel.lanes import Lanes
from raydiance.parallel.shards import head_spans, spans
from raydiance.parallel.ulysses import Local, Projection, Ulysses, check_qkv


class Layer:
    """One attention, of all parts.

    Args:
    link: one for all lanes, so that what is begun first arrives first.
    lengths: [part][rank], how many queries each rank has in each part.
    key_lengths: the same of the keys.
    """

    def __init__(
        self,
        link: Link,
        lanes: Lanes,
        local: Local,
        lengths: Sequence[Sequence[int]],
        key_lengths: Sequence[Sequence[int]],
    ) -> None:
        self._lanes = lanes
        self._local = local
        self._lengths = lengths
        self._key_lengths = key_lengths
        self._parts = [Ulysses(link, local, q, key_lengths=k) for q, k in zip(lengths, key_lengths, strict=True)]
        self._index = link.incoming.index
        self._values: torch.Tensor | None = None
        self._keys: torch.Tensor | None = None
        self._arriving: list[Exchange] = []

    def attend(self, q: Projection, k: Projection, v: Projection, part: int) -> torch.Tensor:
        """→ [B, L_part, H, D] of this rank's tokens of one part. Called once by each part, part 0 first.

        Raises PeerLost, LaneLost, and ValueError as `check_qkv` does.
        """
        ulysses, lanes = self._parts[part], self._lanes
        value = v()
        shares = head_spans(value.shape[2], len(self._lengths[part]), 1)
        share = [spans[0] for spans in shares]
        self._values = self._send(value, share, part, self._values)
        key = k()
        self._keys = self._send(key, share, part, self._keys)
        lanes.switch()
        query = q()
        check_qkv(query, key, value, self._lengths[part][self._index], self._key_lengths[part][self._index])
        queries = ulysses.gather([query], share, self._lengths[part])
        lanes.switch()
        for exchange in self._arriving:
            exchange.wait(pause=False)
        self._arriving.clear()
        (gathered,) = queries(pause=False)
        batch, num_queries, heads, width = query.shape
        out = query.new_empty(heads, batch, num_queries, width)
        attended = gathered
        if gathered.numel():
            attended = self._local(gathered, _by_token(self._keys), _by_token(self._values))[0]
        leaving = ulysses.scatter(attended, out, share, self._lengths[part])
        leaving.wait()
        return out.permute(1, 2, 0, 3)

    def _send(
        self, tensor: torch.Tensor, share: Sequence[slice], part: int, buffer: torch.Tensor | None
    ) -> torch.Tensor:
        """Begins to collect a part's keys or values into a buffer of all, [S, 1, B, h, D]."""
        own = share[self._index]
        if buffer is None:
            total = sum(map(sum, self._key_lengths))
            buffer = tensor.new_empty(total, 1, tensor.shape[0], own.stop - own.start, tensor.shape[3])
        own_part = spans([sum(lengths) for lengths in self._key_lengths])[part]
        into = buffer[own_part].split(list(self._key_lengths[part]))
        self._arriving.append(self._parts[part].send([tensor], share, into))
        return buffer


def _by_token(buffer: torch.Tensor) -> torch.Tensor:
    """[S, 1, B, h, D] → [B, S, h, D]."""
    return buffer[:, 0].transpose(0, 1)
