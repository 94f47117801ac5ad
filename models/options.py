"""How a model's weights are brought onto a device. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Offload = Literal["none", "group", "idle_expert"]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Args:
    dtype: `float32`, `bfloat16` or `float16`, of the weights; latents are fp32 always.
    components: component name to a folder (or hub id) that it is taken from instead of the model's own; for GGUF
        to a `.gguf` file.
    offload: `group` keeps the weights in host memory and brings them to the device group by group (diffusers'
        group offloading); `idle_expert` keeps of two experts only the one in use on the device.
    device_map: diffusers' and transformers' own, such as `balanced`: a component over several devices.
    quantization: component name to a backend (`torchao`, `bitsandbytes`) and its options, for weights that are
        quantised as they load. A checkpoint that is quantised already says so in its own config and needs none.
    """

    device: str = "cpu"
    dtype: str = "float32"
    components: Mapping[str, str] = field(default_factory=dict)
    offload: Offload = "none"
    device_map: str | None = None
    quantization: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
