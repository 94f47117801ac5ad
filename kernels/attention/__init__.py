"""Attention kernels: one function, many backends, a naive form beside the fast ones.

A backend is a module beside this one with `attend`, imported when it is first used; `registry` says what each can do.
"""

from __future__ import annotations

import functools
import importlib
import logging
from typing import Protocol, cast

import torch

from raydiance.kernels.attention.merge import merge
from raydiance.kernels.attention.registry import AUTO, BACKENDS, AttentionUnavailable, choose, explain

__all__ = ["AUTO", "BACKENDS", "AttentionUnavailable", "attend", "attention", "choose", "merge"]

log = logging.getLogger("ray.serve")


class Attend(Protocol):
    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, with_lse: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]: ...


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    backend: str = "auto",
    causal: bool = False,
    with_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """softmax(q k^T / sqrt(D)) v.

    Args:
        q: [B, L, H, D].
        k: [B, S, H, D], as v.
        backend: a name in `BACKENDS`, or `auto`.
        causal: query i attends to keys 0 to i; only where L = S, since backends disagree on other shapes.

    Returns:
        out, [B, L, H, D] in q's dtype, and the natural logarithm of the sum of the exponentials of the scaled scores,
        fp32 [B, H, L]: None where it is not asked for.

    Raises:
        AttentionUnavailable: the backend is missing or cannot do it; no other one is used in its stead.
        ValueError: shapes, dtypes or devices do not fit, a dimension is empty, or there is no such backend.
    """
    _check(q, k, v, causal)
    name = _chosen(backend, q.device, q.dtype, q.shape[-1], with_lse)
    out, lse = _load(name)(q, k, v, causal=causal, with_lse=with_lse)
    return out, lse if with_lse else None


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, backend: str = "auto") -> torch.Tensor:
    """`attention` without the log-sum-exp; with its backend bound, what `Family.set_attention` takes."""
    return attention(q, k, v, backend=backend)[0]


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> None:
    shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if q.dim() != 4 or k.shape != v.shape or q.shape[:1] + q.shape[2:] != k.shape[:1] + k.shape[2:]:
        raise ValueError(f"attention takes q [B, L, H, D], k and v [B, S, H, D]; got {shapes}")
    if not q.numel() or not k.numel():
        raise ValueError(f"attention over nothing: {shapes}")
    if len({(x.dtype, x.device) for x in (q, k, v)}) > 1:
        raise ValueError(f"q, k and v differ: {', '.join(f'{x.dtype} on {x.device}' for x in (q, k, v))}")
    if causal and q.shape[1] != k.shape[1]:
        raise ValueError(f"causal attention takes as many queries as keys; got {shapes}")


@functools.cache
def _chosen(backend: str, device: torch.device, dtype: torch.dtype, head_dim: int, with_lse: bool) -> str:
    """`choose`, once for each key; what `auto` picks is logged with why."""
    name, passed_over = explain(backend, device, dtype, head_dim, with_lse)
    if backend == "auto":
        asked = f"{device}, {dtype}, heads of {head_dim}" + (", with log-sum-exp" if with_lse else "")
        log.info("attention on %s: %s (%s)", asked, name, "; ".join(passed_over) or "the first choice")
    return name


@functools.cache
def _load(name: str) -> Attend:
    return cast("Attend", importlib.import_module(f"{__name__}.{name}").attend)
