"""Raydiance: image and video diffusion models served on a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raydiance.serve.client import connect as connect

__all__ = ["__version__", "connect"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "connect":
        from raydiance.serve.client import connect

        return connect
    raise AttributeError(f"module 'raydiance' has no attribute '{name}'")
