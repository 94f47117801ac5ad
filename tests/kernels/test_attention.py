"""sdpa against the naive backend, and that against the definition in fp64; the others: test_flex.py, test_on_gpu.py."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.families.wan import MODELS
from tests.kernels.tensors import (
    DTYPES,
    LSE_TOLERANCE,
    SHAPE_IDS,
    SHAPES,
    TOLERANCES,
    Shape,
    error,
    inputs,
)

from raydiance.kernels.attention import attend, attention

torch.set_num_threads(1)
SIZES = st.tuples(
    st.integers(1, 3), st.integers(1, 70), st.integers(1, 70), st.integers(1, 3), st.sampled_from([1, 3, 8, 12, 64])
)


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition in fp64, one query at a time."""
    out, lse = torch.zeros(q.shape, dtype=torch.float64), torch.zeros(*q.shape[:3], dtype=torch.float64)
    for b, i, h in torch.cartesian_prod(*(torch.arange(n) for n in q.shape[:3])).reshape(-1, 3).tolist():
        seen = slice(None, i + 1 if causal else None)
        scores = k[b, seen, h].double() @ q[b, i, h].double() / math.sqrt(q.shape[-1])
        lse[b, i, h] = scores.logsumexp(0)
        out[b, i, h] = scores.softmax(0) @ v[b, seen, h].double()
    return out, lse.transpose(1, 2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 12), (2, 7, 7, 2, 12)])
def test_naive_is_the_definition(shape: Shape, causal: bool) -> None:
    q, k, v = inputs(shape)
    out, lse = attention(q, k, v, backend="naive", causal=causal, with_lse=True)
    expected_out, expected_lse = by_hand(q, k, v, causal)
    assert error(out, expected_out) <= TOLERANCES[torch.float32]
    assert error(lse, expected_lse) <= TOLERANCES[torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_IDS)
def test_sdpa_equals_naive(dtype: torch.dtype, shape: Shape) -> None:
    q, k, v = inputs(shape, dtype)
    out, lse = attention(q, k, v, backend="sdpa")
    assert out.dtype == dtype
    assert lse is None
    assert error(out, attention(q, k, v, backend="naive")[0]) <= TOLERANCES[dtype]


@pytest.mark.parametrize("num_tokens", [1, 33, 130])
def test_causal_sdpa_equals_naive(num_tokens: int) -> None:
    q, k, v = inputs((2, num_tokens, num_tokens, 2, 12))
    out, _ = attention(q, k, v, backend="sdpa", causal=True)
    assert error(out, attention(q, k, v, backend="naive", causal=True)[0]) <= TOLERANCES[torch.float32]


@pytest.mark.parametrize("backend", ["naive", "sdpa"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_IDS)
def test_the_log_sum_exp_is_torchs(backend: str, dtype: torch.dtype, shape: Shape) -> None:
    q, k, v = inputs(shape, dtype)
    out, lse = attention(q, k, v, backend=backend, with_lse=True)
    assert lse is not None
    assert lse.dtype == torch.float32
    scores = torch.einsum("blhd,bshd->bhls", q.double(), k.double()) / math.sqrt(shape[-1])
    assert error(lse, torch.logsumexp(scores, dim=-1)) <= LSE_TOLERANCE
    assert error(out, attention(q, k, v, backend="naive")[0]) <= TOLERANCES[dtype]


def test_a_causal_log_sum_exp() -> None:
    q, k, v = inputs((2, 33, 33, 2, 12))
    found = attention(q, k, v, backend="sdpa", causal=True, with_lse=True)
    expected = attention(q, k, v, backend="naive", causal=True, with_lse=True)
    assert error(found[0], expected[0]) <= TOLERANCES[torch.float32]
    assert error(found[1], expected[1]) <= LSE_TOLERANCE


@given(shape=SIZES, dtype=st.sampled_from(list(TOLERANCES)), with_lse=st.booleans(), seed=st.integers(0, 99))
def test_sdpa_equals_naive_at_any_shape(shape: Shape, dtype: torch.dtype, with_lse: bool, seed: int) -> None:
    q, k, v = inputs(shape, dtype, seed=seed)
    found = attention(q, k, v, backend="sdpa", with_lse=with_lse)
    expected = attention(q, k, v, backend="naive", with_lse=with_lse)
    assert error(found[0], expected[0]) <= TOLERANCES[dtype]
    if with_lse:
        assert error(found[1], expected[1]) <= LSE_TOLERANCE
    else:
        assert found[1] is None


@pytest.mark.parametrize("with_lse", [False, True])
def test_strided_tensors_are_taken(with_lse: bool) -> None:
    """As a fused projection gives them: q, k and v are slices of one tensor, here with NaN between them."""
    fused = torch.full((2, 9, 2, 4, 12), torch.nan)
    for i, x in enumerate(inputs((2, 9, 9, 2, 12))):
        fused[:, :, :, i] = x
    q, k, v, _ = fused.unbind(3)
    out, _ = attention(q, k, v, backend="sdpa", with_lse=with_lse)
    assert error(out, attention(q, k, v, backend="naive")[0]) <= TOLERANCES[torch.float32]


@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        ((1, 3, 8), (1, 3, 8), (1, 3, 8), "takes q"),
        ((1, 3, 4, 8), (1, 3, 2, 8), (1, 3, 2, 8), "takes q"),  # grouped heads
        ((1, 3, 2, 8), (1, 3, 2, 8), (1, 4, 2, 8), "takes q"),
        ((2, 3, 2, 8), (1, 3, 2, 8), (1, 3, 2, 8), "takes q"),
        ((1, 0, 2, 8), (1, 3, 2, 8), (1, 3, 2, 8), "over nothing"),
        ((1, 3, 2, 8), (1, 0, 2, 8), (1, 0, 2, 8), "over nothing"),
    ],
)
def test_other_shapes_are_refused(q: Shape, k: Shape, v: Shape, message: str) -> None:
    """torch's CPU kernel ends the process where there are no queries."""
    with pytest.raises(ValueError, match=message):
        attention(torch.zeros(q), torch.zeros(k), torch.zeros(v), backend="sdpa", with_lse=True)


def test_causal_with_other_numbers_of_keys_is_refused() -> None:
    q, k, v = inputs((1, 3, 4, 1, 8))
    with pytest.raises(ValueError, match="as many queries as keys"):
        attention(q, k, v, causal=True)


def test_mixed_dtypes_are_refused() -> None:
    q, k, v = inputs((1, 3, 4, 1, 8))
    with pytest.raises(ValueError, match="differ"):
        attention(q, k.half(), v)


@pytest.mark.parametrize("backend", ["sdpa", "naive"])
def test_a_family_with_it_gives_diffusers_numbers(backend: str) -> None:
    model, calls = MODELS[0], []
    studio, case = model.studio, model.cases[0]
    own = studio.latents(case)

    def counted(*tensors: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return partial(attend, backend=backend)(*tensors)

    studio.denoiser.set_attention(counted)
    try:
        given = studio.latents(case)
    finally:
        studio.denoiser.set_attention(None)
    assert len(calls) >= 4 * case.spec.num_inference_steps  # two blocks, self- and cross-attention
    assert error(given, own) <= 1e-5
