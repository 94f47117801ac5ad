"""Which backend is used, and what is said where one cannot be."""

from __future__ import annotations

import logging
import pickle
from typing import get_args

import pytest
import torch
from tests.kernels.tensors import inputs

from raydiance.kernels.attention import BACKENDS, AttentionUnavailable, attention, choose, registry
from raydiance.serve.config import Attention

CPU, CUDA, METAL = torch.device("cpu"), torch.device("cuda"), torch.device("mps")
HOPPER, AMPERE, TURING = (9, 0), (8, 0), (7, 5)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """A machine with these packages and this GPU."""

    def build(capability: tuple[int, int] = HOPPER, *packages: str) -> None:
        monkeypatch.setattr(registry, "is_installed", lambda name: name in ("torch", *packages))
        monkeypatch.setattr(registry, "capability", lambda device: capability)

    return build


def test_the_configuration_names_every_backend() -> None:
    assert get_args(Attention) == ("auto", *BACKENDS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("with_lse", [False, True])
@pytest.mark.parametrize("head_dim", [None, 1, 12, 128])
def test_auto_is_sdpa_on_the_cpu(dtype: torch.dtype, with_lse: bool, head_dim: int | None) -> None:
    assert choose("auto", CPU, dtype, head_dim, with_lse) == "sdpa"


@pytest.mark.parametrize(
    ("capability", "packages", "dtype", "head_dim", "expected"),
    [
        (HOPPER, ("flash_attn", "flash_attn_interface"), torch.bfloat16, 128, "flash3"),
        (HOPPER, ("flash_attn", "flash_attn_interface"), torch.bfloat16, 12, "flash2"),
        (HOPPER, ("flash_attn", "flash_attn_interface"), torch.bfloat16, 512, "sdpa"),
        (HOPPER, ("flash_attn", "flash_attn_interface"), torch.float32, 128, "sdpa"),
        (HOPPER, ("flash_attn",), torch.bfloat16, None, "flash2"),
        (AMPERE, ("flash_attn", "flash_attn_interface"), torch.float16, 128, "flash2"),
        (TURING, ("flash_attn", "flash_attn_interface"), torch.float16, 128, "sdpa"),
        (HOPPER, ("xformers",), torch.bfloat16, 128, "sdpa"),
    ],
)
def test_auto_on_a_gpu(machine, capability, packages, dtype, head_dim, expected) -> None:
    machine(capability, *packages)
    assert choose("auto", CUDA, dtype, head_dim, True) == expected


def test_auto_where_sdpa_gives_no_log_sum_exp() -> None:
    assert choose("auto", METAL, torch.float32, 64, False) == "sdpa"
    assert choose("auto", METAL, torch.float32, 64, True) == "naive"


def test_auto_that_finds_none_says_why_of_each() -> None:
    with pytest.raises(AttentionUnavailable, match=r"none can.*sdpa: takes bfloat16, float16, float32, not float64"):
        choose("auto", CPU, torch.float64, 64, False)


@pytest.mark.parametrize(
    ("backend", "package", "install"),
    [
        ("flash2", "flash_attn", "flash-attn"),
        ("flash3", "flash_attn_interface", "flash_attn_3"),
        ("xformers", "xformers", "xformers"),
    ],
)
@pytest.mark.parametrize("device", [CPU, CUDA], ids=str)
def test_a_missing_one_is_refused_with_its_package(machine, backend, package, install, device) -> None:
    machine()
    with pytest.raises(AttentionUnavailable) as told:
        choose(backend, device, torch.bfloat16, 128, False)
    assert told.value.backend == backend
    assert told.value.reason == f"the package {package} is not installed"
    assert install in (told.value.install or "")
    for word in (backend, package, install):
        assert word in str(told.value)


@pytest.mark.parametrize(
    ("backend", "device", "dtype", "head_dim", "with_lse", "reason"),
    [
        ("flash2", CPU, torch.float16, 64, False, "runs on cuda, not on cpu"),
        ("flash2", CUDA, torch.float32, 64, False, "takes bfloat16, float16, not float32"),
        ("flash3", CUDA, torch.float16, 12, False, "takes heads of 8 to 256 in steps of 8, not of 12"),
        ("flash3", CUDA, torch.float16, 64, False, r"needs compute capability \(9, 0\)"),
        ("flex", CUDA, torch.float16, 8, False, "takes heads of 16 to 256, not of 8"),
        ("flex", CPU, torch.float16, 64, True, "gives no log-sum-exp on cpu"),
        ("sdpa", METAL, torch.float16, 64, True, "gives no log-sum-exp on mps"),
        ("naive", CPU, torch.float64, 64, False, "not float64"),
    ],
)
def test_a_forced_one_that_cannot_is_refused(machine, backend, device, dtype, head_dim, with_lse, reason) -> None:
    machine(AMPERE, "flash_attn", "flash_attn_interface", "xformers")
    with pytest.raises(AttentionUnavailable, match=reason) as told:
        choose(backend, device, dtype, head_dim, with_lse)
    assert told.value.backend == backend
    assert told.value.install is None


def test_attention_itself_refuses(machine) -> None:
    q, k, v = inputs((1, 3, 3, 1, 8))
    with pytest.raises(AttentionUnavailable, match="flex"):
        attention(q, k, v, backend="flex", with_lse=True)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no attention backend 'flash9'; there are auto, naive, sdpa"):
        choose("flash9", CPU, torch.float32, 64, False)


def test_the_refusal_survives_pickling() -> None:
    """Replicas raise it to whoever starts them."""
    told = AttentionUnavailable("flash2", "missing", "pip install it")
    again = pickle.loads(pickle.dumps(told))
    assert (again.backend, again.reason, again.install) == ("flash2", "missing", "pip install it")
    assert str(again) == str(told)


def test_autos_choice_is_logged_once_for_each_key(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ray.serve"):
        for head_dim in (40, 40, 44, 40):  # sizes that no other test has
            attention(*inputs((1, 3, 3, 1, head_dim)))
        attention(*inputs((1, 3, 3, 1, 36)), backend="sdpa")
    told = [r.getMessage() for r in caplog.records if r.getMessage().startswith("attention on")]
    assert len(told) == 2
    assert "cpu, torch.float32, heads of 40: sdpa (flash3: the package flash_attn_interface is not" in told[0]
    assert "heads of 44: sdpa" in told[1]
