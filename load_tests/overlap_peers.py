"""The peers: diffusers' Ulysses, and cache-dit's asynchronous one for FLUX, through their public calls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from diffusers import ContextParallelConfig
from diffusers.models.transformers.transformer_flux import FluxAttnProcessor
from overlap_arms import Arm, Row, Setting, Step, output_of, register, sequence_bytes


@contextlib.contextmanager
def one_device_each() -> Iterator[None]:
    """diffusers and cache-dit divide a rank's number by the count of accelerators, which is 0 on a machine of CPUs."""
    with mock.patch("torch.accelerator.device_count", return_value=1):
        yield


def sharded_by_diffusers(setting: Setting) -> Any:
    model = setting.model()
    with one_device_each():
        model.enable_parallelism(config=ContextParallelConfig(ulysses_degree=setting.world))
    return model


def diffusers_ulysses(setting: Setting) -> Step:
    model = sharded_by_diffusers(setting)
    return lambda forwards: [output_of(model, inputs) for inputs in forwards]


def cache_dit_ulysses(setting: Setting) -> Step:
    """For the asynchronous Ulysses it replaces methods of diffusers' classes, and diffusers' attention backends."""
    import cache_dit  # not where the others run: the import alone changes diffusers

    model = setting.model()
    plain = FluxAttnProcessor.__call__
    with one_device_each():
        cache_dit.enable_cache(
            model,
            parallelism_config=cache_dit.ParallelismConfig(ulysses_size=setting.world, ulysses_async=True),
        )
    if FluxAttnProcessor.__call__ is plain:
        raise RuntimeError("cache-dit left diffusers' methods as they are: its asynchronous Ulysses is off")
    return lambda forwards: [output_of(model, inputs) for inputs in forwards]


def is_flux(row: Row, _world: int) -> bool:
    return row.family == "flux"


register(Arm("diffusers", "sequence", diffusers_ulysses, wire_bytes=sequence_bytes))
register(Arm("cache-dit", "sequence", cache_dit_ulysses, takes=is_flux, wire_bytes=sequence_bytes, process="cache-dit"))
