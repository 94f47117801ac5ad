"""What the packages for GPUs are called with, and what is made of what they give: with stand-ins that have their
signatures and, where it matters, their paddings. Their numbers are for test_on_gpu.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from tests.kernels.tensors import LSE_TOLERANCE, TOLERANCES, Shape, error, inputs

from raydiance.kernels.attention import AttentionUnavailable, flash2, flash3, naive, sdpa, xformers

SHAPE = (2, 9, 9, 2, 12)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    flash2._function.cache_clear()
    flash3._function.cache_clear()


def module(monkeypatch: pytest.MonkeyPatch, name: str, **values: Any) -> None:
    made = ModuleType(name)
    made.__dict__.update(values)
    monkeypatch.setitem(sys.modules, name, made)


def both(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = naive.attend(q, k, v, causal=causal, with_lse=True)
    assert lse is not None
    return out, lse


def flash_attn_2(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, *, return_attn_probs=False) -> Any:
    out, lse = both(q, k, v, causal)
    return (out, lse, None) if return_attn_probs else out


def flash_attn_3(q, k, v, softmax_scale=None, causal=False, *, return_attn_probs=False) -> Any:
    out, lse = both(q, k, v, causal)
    return (out, lse) if return_attn_probs else out


def flash_attn_3_beta(q, k, v, softmax_scale=None, causal=False) -> Any:
    return both(q, k, v, causal)


def check(attend: Any) -> None:
    tensors = inputs(SHAPE)
    for causal in (False, True):
        expected = both(*tensors, causal)
        out, lse = attend(*tensors, causal=causal, with_lse=True)
        assert torch.equal(out, expected[0])
        assert torch.equal(lse, expected[1])
        assert torch.equal(attend(*tensors, causal=causal, with_lse=False)[0], expected[0])


def test_flash2(monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "flash_attn", flash_attn_func=flash_attn_2)
    check(flash2.attend)


@pytest.mark.parametrize("function", [flash_attn_3, flash_attn_3_beta])
def test_flash3(monkeypatch: pytest.MonkeyPatch, function: Any) -> None:
    module(monkeypatch, "flash_attn_interface", flash_attn_func=function)
    check(flash3.attend)


def test_xformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of its operators pad the log-sum-exp."""

    class LowerTriangularMask:
        pass

    def forward(q, k, v, attn_bias=None, p=0.0, scale=None) -> torch.Tensor:
        return both(q, k, v, isinstance(attn_bias, LowerTriangularMask))[0]

    def with_lse(q, k, v, attn_bias=None, p=0.0, scale=None) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = both(q, k, v, isinstance(attn_bias, LowerTriangularMask))
        return out, torch.nn.functional.pad(lse, (0, 23), value=torch.inf)

    ops = {
        "LowerTriangularMask": LowerTriangularMask,
        "memory_efficient_attention_forward": forward,
        "memory_efficient_attention_forward_requires_grad": with_lse,
    }
    module(monkeypatch, "xformers")
    module(monkeypatch, "xformers.ops", **ops)
    check(xformers.attend)


@pytest.mark.parametrize("with_lse", [False, True])
def test_xformers_without_operators_is_refused(monkeypatch: pytest.MonkeyPatch, with_lse: bool) -> None:
    def none(*args: Any) -> None:
        raise NotImplementedError("No operator found")

    module(monkeypatch, "xformers")
    names = ("memory_efficient_attention_forward", "memory_efficient_attention_forward_requires_grad")
    module(monkeypatch, "xformers.ops", **dict.fromkeys(names, none))
    with pytest.raises(AttentionUnavailable, match=r"'xformers'.*No operator found"):
        xformers.attend(*inputs(SHAPE), causal=False, with_lse=with_lse)


@pytest.mark.parametrize("capability", [(7, 5), (9, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(2, 9, 5, 2, 12), (1, 33, 40, 1, 64)])
def test_torchs_operators_for_cuda_take_the_call(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, shape: Shape, capability: tuple[int, int]
) -> None:
    """On the meta device: the arguments and the shapes, without numbers."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    q, k, v = inputs(shape, dtype, "meta")
    out, lse = sdpa.attend(q, k, v, causal=False, with_lse=True)
    batch, queries, _, heads, _ = shape
    assert out.shape == q.shape
    assert lse is not None
    assert lse.shape == (batch, heads, queries)
    assert lse.dtype == torch.float32


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("operator", "dtype"),
    [
        ("_scaled_dot_product_flash_attention", torch.float16),
        ("_scaled_dot_product_efficient_attention", torch.float32),
    ],
)
def test_padding_of_heads_and_queries_is_taken_off(
    monkeypatch: pytest.MonkeyPatch, operator: str, dtype: torch.dtype, causal: bool
) -> None:
    q, k, v = inputs(SHAPE, dtype)

    def on_cpu(q, k, v, *rest: Any, scale: float) -> tuple[torch.Tensor, ...]:
        assert q.shape[-1] % 8 == 0
        flash = len(rest) == 3  # dropout_p, is_causal, return_debug_mask; else attn_bias, compute_log_sumexp, …
        is_causal = rest[1] if flash else rest[3]
        real = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = real(q, k, v, 0.0, is_causal, scale=scale)
        return out, torch.nn.functional.pad(lse, (0, -lse.shape[-1] % 32), value=torch.inf), torch.zeros(())

    real_aten = torch.ops.aten
    stand_in = SimpleNamespace(
        **{operator: on_cpu},
        _scaled_dot_product_flash_attention_for_cpu=real_aten._scaled_dot_product_flash_attention_for_cpu,
    )
    monkeypatch.setattr(torch.ops, "aten", stand_in)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    out, lse = sdpa._on_cuda(*(x.transpose(1, 2) for x in (q, k, v)), causal)
    monkeypatch.undo()
    expected = both(q, k, v, causal)
    assert error(out.transpose(1, 2), expected[0]) <= TOLERANCES[dtype]
    assert error(lse, expected[1]) <= LSE_TOLERANCE
