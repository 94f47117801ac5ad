"""FlashAttention 2, of the package flash-attn. Not yet run on a GPU."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, with_lse: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Not yet run on a GPU."""
    if not with_lse:
        return _function()(q, k, v, causal=causal), None
    out, lse, _ = _function()(q, k, v, causal=causal, return_attn_probs=True)
    return out, lse


@functools.cache
def _function() -> Any:
    return importlib.import_module("flash_attn").flash_attn_func
