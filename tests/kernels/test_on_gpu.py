"""The backends on a CUDA device: those that are not installed there are skipped by name."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.tensors import COMPILING, DTYPES, LSE_TOLERANCE, SHAPE_IDS, SHAPES, TOLERANCES, Shape, error, inputs

from raydiance.kernels.attention import BACKENDS, AttentionUnavailable, attention, choose

pytestmark = [pytest.mark.gpu, COMPILING]
GPU_SHAPES = [*SHAPES, (2, 257, 1000, 3, 128), (1, 33, 33, 2, 64)]
GPU_IDS = [*SHAPE_IDS, "B2-L257-S1000-H3-D128", "B1-L33-S33-H2-D64"]


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "naive"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", GPU_SHAPES, ids=GPU_IDS)
@pytest.mark.parametrize("with_lse", [False, True], ids=["", "lse"])
def test_a_backend_equals_naive(backend: str, dtype: torch.dtype, shape: Shape, with_lse: bool) -> None:
    q, k, v = inputs(shape, dtype, "cuda")
    try:
        choose(backend, q.device, dtype, shape[-1], with_lse)
    except AttentionUnavailable as e:
        pytest.skip(str(e))
    for causal in [False, True] if shape[1] == shape[2] else [False]:
        out, lse = attention(q, k, v, backend=backend, causal=causal, with_lse=with_lse)
        expected, expected_lse = attention(q, k, v, backend="naive", causal=causal, with_lse=with_lse)
        assert error(out, expected) <= TOLERANCES[dtype]
        if with_lse:
            assert error(lse, expected_lse) <= 10 * LSE_TOLERANCE  # scores of tensor cores
        else:
            assert lse is None
