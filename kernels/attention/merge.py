"""Attention over parts of the keys, merged: what ring attention does after each turn."""

from __future__ import annotations

import torch


def merge(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of the same queries over two disjoint sets of keys -> over both.

    With l = log(exp(l_a) + exp(l_b)), out = exp(l_a - l) out_a + exp(l_b - l) out_b
    (https://arxiv.org/abs/2310.01889, with the log-sum-exp of FlashAttention 2 for its maximum and sum).

    Args:
        out_a: [B, L, H, D], of any dtype.
        lse_a: [B, H, L]; -inf where nothing is attended to, whatever the output holds there.

    Returns:
        Both in fp32. Where nothing is attended to in either, 0 and -inf.
    """
    lse_a, lse_b = lse_a.float(), lse_b.float()
    lse = torch.logaddexp(lse_a, lse_b)
    return _weighted(out_a, lse_a, lse) + _weighted(out_b, lse_b, lse), lse


def _weighted(out: torch.Tensor, lse: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    nothing = lse == -torch.inf
    weight = (lse - total).exp().masked_fill(nothing, 0.0)
    by_query = weight.transpose(1, 2).unsqueeze(-1)
    return out.float().masked_fill(nothing.transpose(1, 2).unsqueeze(-1), 0.0) * by_query
