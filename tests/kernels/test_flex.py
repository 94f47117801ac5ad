"""flex on the CPU. Slow: each dtype, and each size of 1, is compiled apart, in 4 to 60 s."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.tensors import COMPILING, SHAPES, TOLERANCES, Shape, error, inputs

from raydiance.kernels.attention import attention

torch.set_num_threads(1)
pytestmark = [pytest.mark.slow, COMPILING]
CASES = [
    *((torch.float32, shape, False) for shape in SHAPES),
    (torch.float32, (2, 33, 33, 2, 12), True),
    (torch.float32, (2, 130, 130, 2, 12), True),
    (torch.float16, (3, 33, 7, 1, 24), False),
    (torch.bfloat16, (3, 33, 7, 1, 24), False),
]


@pytest.mark.parametrize(("dtype", "shape", "causal"), CASES, ids=str)
def test_it_equals_naive(dtype: torch.dtype, shape: Shape, causal: bool) -> None:
    q, k, v = inputs(shape, dtype)
    with torch.no_grad():
        out, lse = attention(q, k, v, backend="flex", causal=causal)
    assert lse is None
    assert out.dtype == dtype
    assert error(out, attention(q, k, v, backend="naive", causal=causal)[0]) <= TOLERANCES[dtype]
