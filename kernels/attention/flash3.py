"""FlashAttention 3, of the package flash_attn_3 (the folder hopper of flash-attention). Not yet run on a GPU."""

from __future__ import annotations

import inspect

import torch


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, with_lse: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Not yet run on a GPU."""
    from flash_attn_interface import flash_attn_func

    if "return_attn_probs" not in inspect.signature(flash_attn_func).parameters:
        out, lse, *_ = flash_attn_func(q, k, v, causal=causal)  # earlier ones give both always
        return out, lse
    if not with_lse:
        return flash_attn_func(q, k, v, causal=causal), None
    out, lse, *_ = flash_attn_func(q, k, v, causal=causal, return_attn_probs=True)
    return out, lse
