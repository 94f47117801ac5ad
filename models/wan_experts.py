"""Wan 2.2's two transformers: which one a timestep needs, and which one is on the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from raydiance.models.options import LoadOptions
from raydiance.models.resolve import CheckpointError
from raydiance.models.wan_config import HIGH_NOISE, LOW_NOISE, Expert, WanConfig
from raydiance.models.weights import load_component

HOST = torch.device("cpu")


class Experts:
    """One transformer for every timestep, or one for those from the boundary on and one for those below it.

    Args:
        models: by the name of their component.
        boundary: a timestep; None with one expert.
        device: where the one in use is.
        offload_idle: the other one waits in the host's memory; else both are on the device.

    Attributes:
        num_moves: of an expert's weights, to the device or off it.
    """

    def __init__(
        self, models: Mapping[Expert, Any], boundary: float | None, device: torch.device, *, offload_idle: bool = False
    ) -> None:
        self.boundary = boundary
        self.num_moves = 0
        self._models = models
        self._device = device
        self._offload_idle = offload_idle
        self._on_device: set[Expert] = set() if offload_idle else set(models)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._models.values())

    @property
    def on_device(self) -> frozenset[Expert]:
        return frozenset(self._on_device)

    def needed(self, timestep: torch.Tensor) -> Expert:
        """The name of the one for a timestep, 0-dim, of the scheduler's own type."""
        if self.boundary is None:
            [only] = self._models
            return only
        return HIGH_NOISE if bool(timestep >= self.boundary) else LOW_NOISE

    def split(
        self, timesteps: Sequence[torch.Tensor], *, same_everywhere: bool = False
    ) -> list[tuple[Expert, list[int]]]:
        """Indices by the expert that they need; the one that is on the device comes first, so that it is not moved.

        Args:
            same_everywhere: in an order that does not depend on that: other ranks may have another one there.
        """
        needed = [self.needed(timestep) for timestep in timesteps]
        names = sorted(set(needed), key=lambda name: (not same_everywhere and name not in self._on_device, name))
        return [(name, [i for i, other in enumerate(needed) if other == name]) for name in names]

    def use(self, name: Expert) -> Any:
        """The expert, on the device. What it displaces leaves first, for there may be no room for both."""
        if name not in self._on_device:
            for idle in tuple(self._on_device):
                self._move(idle, HOST)
                self._on_device.remove(idle)
            self._move(name, self._device)
            self._on_device.add(name)
        return self._models[name]

    def _move(self, name: Expert, device: torch.device) -> None:
        self._models[name].to(device)
        self.num_moves += 1


def offloads_idle(folder: Path, config: WanConfig, options: LoadOptions) -> bool:
    """Whether the idle expert is to wait in the host's memory.

    Raises:
        CheckpointError: there is no idle one, or where it waits is not ours to choose.
    """
    if options.offload != "idle_expert":
        return False
    if len(config.experts) == 1:
        raise CheckpointError(f"offload=idle_expert is for two experts; {folder} has {config.experts[0]} alone")
    if options.device_map is not None:
        raise CheckpointError(f"offload=idle_expert and device_map={options.device_map} both say where experts are")
    return True


def load_experts(
    kind: Any, folder: Path, config: WanConfig, options: LoadOptions, *, on_host: bool
) -> dict[Expert, Any]:
    """Transformers of class `kind`, on the options' device or in the host's memory; CheckpointError as others."""
    if on_host:
        options = replace(options, device=str(HOST))
    models = {name: load_component(kind, folder, name, options) for name in config.experts}
    for name, model in models.items():
        if on_host and (getattr(model, "is_loaded_in_4bit", False) or getattr(model, "is_loaded_in_8bit", False)):
            raise CheckpointError(f"offload=idle_expert moves {name}, which bitsandbytes keeps where it was quantised")
    return models
