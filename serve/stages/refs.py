"""Tensors that a stage hands on by reference."""

from __future__ import annotations

import asyncio
from typing import Any

import ray

HOLD_S = 60.0


def put(value: Any, loop: asyncio.AbstractEventLoop) -> ray.ObjectRef[Any]:
    """A reference whose object this process keeps for a minute, whoever else holds it.

    A reference inside a streamed item is not counted while it travels: if the stream's end drops the last one here
    before its receiver has registered, the object is gone ("already been deleted by the reference counting protocol").

    Args:
        loop: this process's event loop; may be called from any thread.
    """
    ref = ray.put(value)
    loop.call_soon_threadsafe(loop.call_later, HOLD_S, lambda _: None, ref)
    return ref
