"""FlashAttention 2, of the package flash-attn. Not yet run on a GPU."""

from __future__ import annotations

import torch


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, with_lse: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Not yet run on a GPU."""
    from flash_attn import flash_attn_func

    if not with_lse:
        return flash_attn_func(q, k, v, causal=causal), None
    out, lse, _ = flash_attn_func(q, k, v, causal=causal, return_attn_probs=True)
    return out, lse
