"""What a module takes, found without weights and without computing: parameters, FLOPs and peak activation memory.

Modules are built on torch's `meta` device from their configuration, and called there: every operation of the real code
is seen, none is run.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

META = torch.device("meta")


@dataclass(frozen=True, slots=True)
class Cost:
    """Args:
    flops: multiply-adds count as two.
    peak_bytes: of activations that are alive at once, inputs included and weights not.
    """

    flops: int
    peak_bytes: int


def measure(module: torch.nn.Module, call: Callable[[], object]) -> Cost:
    """What one call of a module takes, its tensors being on `meta`.

    Attention counts as a fused kernel: no L x L scores in memory.
    """
    memory, attention = _LiveBytes(module), _FusedAttention()
    with torch.no_grad(), FlopCounterMode(display=False) as counter, attention, memory:
        call()
    return Cost(counter.get_total_flops() + attention.flops, memory.peak)


def count_parameters(module: torch.nn.Module) -> int:
    """Each once, however often it is used."""
    return sum(p.numel() for p in module.parameters())


class _LiveBytes(TorchDispatchMode):
    """Counts the bytes of the storages that operations make, for as long as somebody holds them."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        weights = [*module.parameters(), *module.buffers()]
        self._known = {t.untyped_storage()._cdata for t in weights}  # of which views are made

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor.untyped_storage())
        return out

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


class _FusedAttention(TorchFunctionMode):
    """Puts the result's shape in place of attention: the operator for `meta` would make all scores."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        q, k, v = [*args, *[(kwargs or {})[name] for name in ("query", "key", "value")[len(args) :]]][:3]
        *batch, queries, width = q.shape
        rows = queries * torch.Size(batch).numel()
        self.flops += 2 * rows * k.shape[-2] * (width + v.shape[-1])
        return q.new_empty(*batch, queries, v.shape[-1])
