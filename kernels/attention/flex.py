"""torch's flex_attention, compiled when it is first used: seconds for a new dtype or head size. Shapes are dynamic."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

_RECOMPILE_LIMIT = 64  # sizes of 1 are compiled apart; torch's own limit of 8 is met by a few shapes and dtypes


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, with_lse: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Not yet run on a GPU. On the CPU it has no backward, nor a log-sum-exp."""
    queries, keys, values = (x.transpose(1, 2) for x in (q, k, v))
    mask = _causal_mask(q.shape[1], q.device) if causal else None
    with torch._dynamo.config.patch(recompile_limit=_RECOMPILE_LIMIT):
        if not with_lse:
            return _compiled()(queries, keys, values, block_mask=mask).transpose(1, 2), None
        out, aux = _compiled()(queries, keys, values, block_mask=mask, return_aux=AuxRequest(lse=True))
    return out.transpose(1, 2), aux.lse


@functools.cache
def _compiled() -> Any:
    return torch.compile(flex_attention, fullgraph=True, dynamic=True)


@functools.lru_cache(maxsize=16)
def _causal_mask(num_tokens: int, device: torch.device) -> BlockMask:
    return create_block_mask(_is_past, None, None, num_tokens, num_tokens, device=str(device))


def _is_past(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    return query >= key
