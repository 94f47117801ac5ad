"""torch's scaled_dot_product_attention. It gives no log-sum-exp, which the operators that it calls do give."""

from __future__ import annotations

import torch
import torch.nn.functional as F

Pair = tuple[torch.Tensor, torch.Tensor]


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, with_lse: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Not yet run on a GPU where the log-sum-exp is asked for."""
    queries, keys, values = (x.transpose(1, 2) for x in (q, k, v))
    if not with_lse:
        return F.scaled_dot_product_attention(queries, keys, values, is_causal=causal).transpose(1, 2), None
    attend_with_lse = _on_cpu if q.device.type == "cpu" else _on_cuda
    out, lse = attend_with_lse(queries, keys, values, causal)
    return out.transpose(1, 2), lse.float()


def _on_cpu(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Pair:
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    return out, lse


def _on_cuda(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Pair:
    """FlashAttention 2 where it can, else the memory-efficient kernel. Not yet run on a GPU.

    Both want heads of a multiple of 8; zeros behind q, k and v change neither scores nor output. The memory-efficient
    kernel pads the log-sum-exp to a multiple of 32 queries.
    """
    num_queries, head_dim = q.shape[-2:]
    q, k, v = (F.pad(x, (0, -head_dim % 8)) for x in (q, k, v))
    scale = head_dim**-0.5
    flash = q.dtype != torch.float32 and q.shape[-1] <= 256 and torch.cuda.get_device_capability(q.device) >= (8, 0)
    if flash:
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)
    else:
        out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            q, k, v, None, True, 0.0, causal, scale=scale
        )
    return out[..., :head_dim], lse[..., :num_queries]
