"""Inputs of attention, and how close is close enough."""

from __future__ import annotations

import pytest
import torch

TOLERANCES = {torch.float32: 2e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""Of out: of numbers near 1, some 16 units in the last place of fp32, 3 of fp16 and of bf16."""
LSE_TOLERANCE = 1e-4
"""Of the log-sum-exp, whatever the dtype: it is fp32, of products summed in fp32."""
SHAPES = [  # B, L, S, H, D
    (1, 1, 1, 1, 12),
    (2, 1, 33, 2, 16),
    (2, 33, 1, 2, 12),
    (3, 33, 33, 2, 12),
    (3, 33, 7, 1, 24),
    (1, 130, 65, 2, 64),
]
SHAPE_IDS = ["B{}-L{}-S{}-H{}-D{}".format(*s) for s in SHAPES]
DTYPES = [pytest.param(d, id=str(d).removeprefix("torch.")) for d in TOLERANCES]
COMPILING = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
Shape = tuple[int, int, int, int, int]


def inputs(shape: Shape, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0) -> list[torch.Tensor]:
    """q [B, L, H, D], k and v [B, S, H, D], normal."""
    batch, queries, keys, heads, head_dim = shape
    generator = torch.Generator().manual_seed(seed)
    sizes = [(batch, n, heads, head_dim) for n in (queries, keys, keys)]
    return [torch.randn(size, generator=generator).to(device, dtype) for size in sizes]


def error(a: torch.Tensor | None, b: torch.Tensor | None) -> float:
    assert a is not None
    assert b is not None
    assert a.shape == b.shape
    return float((a.double() - b.double()).abs().max())
