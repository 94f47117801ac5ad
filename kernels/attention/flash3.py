"""FlashAttention 3, of the package flash_attn_3 (the folder hopper of flash-attention). Not yet run on a GPU."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

import torch


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, with_lse: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Not yet run on a GPU."""
    function, is_asked = _function()
    if is_asked and not with_lse:
        return function(q, k, v, causal=causal), None
    out, lse, *_ = function(q, k, v, causal=causal, **({"return_attn_probs": True} if is_asked else {}))
    return out, lse


@functools.cache
def _function() -> tuple[Any, bool]:
    """The function, and whether it has to be asked for the log-sum-exp; earlier ones give it always."""
    function = importlib.import_module("flash_attn_interface").flash_attn_func
    return function, "return_attn_probs" in inspect.signature(function).parameters
