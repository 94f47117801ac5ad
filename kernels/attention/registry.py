"""Which attention backends there are, what each can do, and which one is used."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass

import torch

HALF = frozenset({torch.float16, torch.bfloat16})
ALL = HALF | {torch.float32}
ANY_HEAD_DIM = range(1, 1 << 16)


@dataclass(frozen=True, slots=True)
class Support:
    """What a backend can do on one kind of device.

    Args:
        capability: the least and the greatest CUDA compute capability; None where it does not matter.
    """

    dtypes: frozenset[torch.dtype] = ALL
    head_dims: range = ANY_HEAD_DIM
    gives_lse: bool = True
    capability: tuple[tuple[int, int], tuple[int, int]] | None = None


@dataclass(frozen=True, slots=True)
class Backend:
    """Args:
    package: what must be importable.
    install: how to get it.
    on: by type of device; `*` is any that is not named.
    """

    package: str
    install: str
    on: Mapping[str, Support]


_GPU = "pip install 'raydiance[gpu]'"
_FLASH3 = "pip install ./hopper in a clone of https://github.com/Dao-AILab/flash-attention (flash_attn_3)"
BACKENDS: Mapping[str, Backend] = {
    "naive": Backend("torch", "pip install torch", {"*": Support()}),
    "sdpa": Backend(
        "torch",
        "pip install torch",
        {"cpu": Support(), "cuda": Support(), "*": Support(gives_lse=False)},
    ),
    "flex": Backend(
        "torch",
        "pip install torch",
        {"cpu": Support(gives_lse=False), "cuda": Support(head_dims=range(16, 257))},
    ),
    "flash2": Backend(
        "flash_attn",
        f"{_GPU} (flash-attn)",
        {"cuda": Support(HALF, range(1, 257), capability=((8, 0), (99, 0)))},
    ),
    "flash3": Backend(
        "flash_attn_interface",
        _FLASH3,
        {"cuda": Support(HALF, range(8, 257, 8), capability=((9, 0), (9, 9)))},
    ),
    "xformers": Backend("xformers", f"{_GPU} (xformers)", {"cuda": Support(head_dims=range(8, 257, 8))}),
}
"""flash-attn pads head sizes to multiples of 8 itself; the kernels of FlashAttention 3 are written for Hopper alone."""

AUTO = ("flash3", "flash2", "sdpa", "naive")
"""In order of preference. flex without a sparse mask is slower than sdpa, and xformers has no kernel that it lacks."""


class AttentionUnavailable(RuntimeError):
    """A backend is missing, or cannot do what is asked.

    Attributes:
        backend: its name, or `auto`.
        reason: what is missing.
        install: how to get it; None where installing something would not help.
    """

    def __init__(self, backend: str, reason: str, install: str | None = None) -> None:
        self.backend, self.reason, self.install = backend, reason, install
        super().__init__(f"attention backend '{backend}': {reason}" + (f"; install it: {install}" if install else ""))

    def __reduce__(self) -> tuple[type[AttentionUnavailable], tuple[str, str, str | None]]:
        return type(self), (self.backend, self.reason, self.install)


def check(name: str, device: torch.device, dtype: torch.dtype, head_dim: int | None, with_lse: bool) -> None:
    """Args:
        head_dim: None where it is not known yet, and so not checked.

    Raises:
        AttentionUnavailable: the backend is missing or cannot do it.
        ValueError: there is no backend of that name.
    """
    if name not in BACKENDS:
        raise ValueError(f"no attention backend '{name}'; there are auto, {', '.join(BACKENDS)}")
    backend = BACKENDS[name]
    if not is_installed(backend.package):
        raise AttentionUnavailable(name, f"the package {backend.package} is not installed", backend.install)
    support = backend.on.get(device.type, backend.on.get("*"))
    if support is None:
        raise AttentionUnavailable(name, f"runs on {', '.join(backend.on)}, not on {device.type}")
    if dtype not in support.dtypes:
        names = sorted(str(d).removeprefix("torch.") for d in support.dtypes)
        raise AttentionUnavailable(name, f"takes {', '.join(names)}, not {str(dtype).removeprefix('torch.')}")
    if head_dim is not None and head_dim not in support.head_dims:
        d = support.head_dims
        of = f" in steps of {d.step}" if d.step > 1 else ""
        raise AttentionUnavailable(name, f"takes heads of {d[0]} to {d[-1]}{of}, not of {head_dim}")
    if with_lse and not support.gives_lse:
        raise AttentionUnavailable(name, f"gives no log-sum-exp on {device.type}")
    if support.capability is not None:
        (least, greatest), has = support.capability, capability(device)
        if not least <= has <= greatest:
            raise AttentionUnavailable(name, f"needs compute capability {least} to {greatest}; this device has {has}")


def choose(backend: str, device: torch.device, dtype: torch.dtype, head_dim: int | None, with_lse: bool) -> str:
    """The name of the backend that is used: the given one, or for `auto` the first of `AUTO` that can.

    Raises:
        AttentionUnavailable: the given one, or with `auto` any, is missing or cannot do it.
        ValueError: there is no backend of that name.
    """
    return explain(backend, device, dtype, head_dim, with_lse)[0]


def explain(
    backend: str, device: torch.device, dtype: torch.dtype, head_dim: int | None, with_lse: bool
) -> tuple[str, tuple[str, ...]]:
    """`choose`, and why each backend that `auto` would rather have was passed over."""
    if backend != "auto":
        check(backend, device, dtype, head_dim, with_lse)
        return backend, ()
    passed_over: list[str] = []
    for name in AUTO:
        try:
            check(name, device, dtype, head_dim, with_lse)
        except AttentionUnavailable as e:
            passed_over.append(f"{name}: {e.reason}")
        else:
            return name, tuple(passed_over)
    raise AttentionUnavailable("auto", "none can: " + "; ".join(passed_over))


@functools.cache
def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def capability(device: torch.device) -> tuple[int, int]:
    """CUDA's compute capability."""
    return torch.cuda.get_device_capability(device)
