"""Calls over Serve handles with their types: Ray's own annotations do not say which of two responses comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

from ray.serve.handle import DeploymentHandle, DeploymentResponse, DeploymentResponseGenerator


def call(handle: DeploymentHandle[Any], method: str, *args: Any) -> DeploymentResponse[Any]:
    """Await it, or pass it on as an argument: then its value goes by reference."""
    return cast("DeploymentResponse[Any]", handle.options(method_name=method).remote(*args))


async def ask(handle: DeploymentHandle[Any], method: str, *args: Any) -> Any:
    """The answer. If the caller is cancelled, so is the call, and it has ended in the replica when this returns."""
    response = call(handle, method, *args)
    try:
        return await response
    except asyncio.CancelledError:
        response.cancel()
        with suppress(asyncio.CancelledError, Exception):  # it ends so, or as it may: nobody asks any longer
            await response
        raise


@asynccontextmanager
async def stream(handle: DeploymentHandle[Any], method: str, *args: Any) -> AsyncIterator[AsyncIterator[Any]]:
    """Items of an async generator; it is cancelled in the replica when the context is left before its end."""
    items = cast("DeploymentResponseGenerator[Any]", handle.options(method_name=method, stream=True).remote(*args))
    try:
        yield items
    finally:
        cast("Any", items).cancel()
