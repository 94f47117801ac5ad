"""xformers' memory-efficient attention. Not yet run on a GPU."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from raydiance.kernels.attention.registry import AttentionUnavailable


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, with_lse: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Not yet run on a GPU.

    Raises:
        AttentionUnavailable: none of its operators can; it may be installed without any.
    """
    ops: Any = importlib.import_module("xformers.ops")
    bias = ops.LowerTriangularMask() if causal else None
    try:
        if not with_lse:
            return ops.memory_efficient_attention_forward(q, k, v, bias), None
        out, lse = ops.memory_efficient_attention_forward_requires_grad(q, k, v, bias)
    except NotImplementedError as e:
        raise AttentionUnavailable("xformers", f"no operator of xformers can: {e}") from e
    return out, lse[..., : q.shape[1]].float()  # some operators pad the queries
