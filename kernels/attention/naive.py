"""Attention as it is defined, in fp32: what every other backend is compared with."""

from __future__ import annotations

import torch


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, with_lse: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The whole matrix of scores, [B, H, L, S], is held in memory."""
    queries, keys, values = (x.float().transpose(1, 2) for x in (q, k, v))
    scores = queries @ keys.mT * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(scores.new_ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    out = (scores.softmax(dim=-1) @ values).transpose(1, 2).to(q.dtype)
    return out, scores.logsumexp(dim=-1) if with_lse else None
