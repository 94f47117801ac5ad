"""Attention over parts of the keys, merged, is attention over all of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.tensors import DTYPES, LSE_TOLERANCE, SHAPES, TOLERANCES, Shape, error, inputs

from raydiance.kernels.attention import attention, merge

torch.set_num_threads(1)
Part = tuple[torch.Tensor, torch.Tensor]


def part(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, backend: str = "sdpa") -> Part:
    out, lse = attention(q, k, v, backend=backend, with_lse=True)
    assert lse is not None
    return out, lse


@pytest.mark.parametrize("backend", ["naive", "sdpa"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[2] > 1], ids=str)
def test_two_halves_are_the_whole(backend: str, dtype: torch.dtype, shape: Shape) -> None:
    q, k, v = inputs(shape, dtype)
    half = shape[2] // 2
    out, lse = merge(*part(q, k[:, :half], v[:, :half], backend), *part(q, k[:, half:], v[:, half:], backend))
    whole = part(q, k, v, "naive")
    assert out.dtype == lse.dtype == torch.float32
    assert error(out, whole[0]) <= TOLERANCES[dtype]
    assert error(lse, whole[1]) <= LSE_TOLERANCE


@given(sizes=st.lists(st.integers(1, 9), min_size=2, max_size=6), seed=st.integers(0, 99))
def test_any_parts_in_any_order(sizes: list[int], seed: int) -> None:
    q, k, v = inputs((2, 5, sum(sizes), 2, 12), seed=seed)
    parts = [part(q, keys, values) for keys, values in zip(k.split(sizes, 1), v.split(sizes, 1), strict=True)]
    forwards, backwards = parts[0], parts[-1]
    for i in range(1, len(parts)):
        forwards, backwards = merge(*forwards, *parts[i]), merge(*parts[-1 - i], *backwards)
    for merged in (forwards, backwards):
        assert error(merged[0], attention(q, k, v, backend="naive")[0]) <= TOLERANCES[torch.float32]


def test_scores_far_apart_do_not_overflow() -> None:
    q, k, v = inputs((1, 3, 8, 1, 8))
    k[:, :4] *= 1000
    out, lse = merge(*part(q, k[:, :4], v[:, :4]), *part(q, k[:, 4:], v[:, 4:]))
    whole = part(q, k, v, "naive")
    assert error(out, whole[0]) <= TOLERANCES[torch.float32]
    assert torch.allclose(lse, whole[1], rtol=1e-6)


@pytest.mark.parametrize("poison", [0.0, torch.nan, torch.inf])
def test_a_part_that_attends_to_nothing_changes_nothing(poison: float) -> None:
    q, k, v = inputs((2, 5, 7, 2, 12))
    out, lse = part(q, k, v)
    nothing = torch.full_like(out, poison), torch.full_like(lse, -torch.inf)
    for merged in (merge(out, lse, *nothing), merge(*nothing, out, lse)):
        assert torch.equal(merged[0], out)
        assert torch.equal(merged[1], lse)


def test_nothing_and_nothing_is_nothing() -> None:
    out, lse = torch.full((1, 2, 1, 4), torch.nan), torch.full((1, 1, 2), -torch.inf)
    merged = merge(out, lse, out, lse)
    assert torch.equal(merged[0], torch.zeros_like(out))
    assert torch.equal(merged[1], lse)


def test_only_some_queries_attend_to_nothing() -> None:
    """As in the causal turns of a ring: the second part is seen by the last queries alone."""
    q, k, v = inputs((1, 6, 6, 2, 12))
    first, second = part(q, k[:, :3], v[:, :3]), part(q, k[:, 3:], v[:, 3:])
    second[0][:, :2], second[1][:, :, :2] = torch.nan, -torch.inf
    out, lse = merge(*first, *second)
    whole = part(q, k, v)
    assert torch.equal(out[:, :2], first[0][:, :2])
    assert torch.equal(lse[:, :, :2], first[1][:, :, :2])
    assert error(out[:, 2:], whole[0][:, 2:]) <= TOLERANCES[torch.float32]
