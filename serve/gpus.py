"""GPUs by name, as their makers' data sheets have them: what a simulation takes for its steps. Pure.

Sources, dense bfloat16 without sparsity: NVIDIA's data sheets of H100 SXM, H200 SXM, HGX B200, A100 80GB SXM, L40S and
L4 (https://www.nvidia.com/en-us/data-center/), and the white paper of the Ada architecture for RTX 4090 (with FP32
accumulation). What they say of sparse matrices is halved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

GpuName = Literal["b200", "h200", "h100", "a100", "l40s", "l4", "rtx4090"]
ACHIEVED = 0.4
"""Of the peak, over a whole step of a large model. Assumed, not measured."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Args:
    peak_tflops: bfloat16, dense.
    memory_tb_s: bandwidth of its memory.
    achieved: the share of the peak that a step reaches.
    """

    peak_tflops: float
    memory_tb_s: float
    achieved: float = ACHIEVED

    def compute_s(self, flops: float) -> float:
        return flops / (self.peak_tflops * 1e12 * self.achieved)

    def read_s(self, num_bytes: float) -> float:
        """For reading so much of its memory once, as every forward reads its weights."""
        return num_bytes / (self.memory_tb_s * 1e12)


GPUS: Mapping[GpuName, Gpu] = MappingProxyType(
    {
        "b200": Gpu(2250, 8.0),
        "h200": Gpu(989.4, 4.8),
        "h100": Gpu(989.4, 3.35),
        "a100": Gpu(312, 2.039),
        "l40s": Gpu(362, 0.864),
        "l4": Gpu(121, 0.3),
        "rtx4090": Gpu(165.2, 1.008),
    }
)
