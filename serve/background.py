"""Work that outlives the request that asked for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

from raydiance.serve.errors import RaydianceError

T = TypeVar("T")
log = logging.getLogger("ray.serve")
_running: set[asyncio.Task[Any]] = set()  # asyncio itself holds tasks only weakly


def detached(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task that no request owns: when Serve cancels one, it cancels all calls made in that request's context."""
    return asyncio.get_running_loop().create_task(work, context=Context())


def spawn(work: Coroutine[Any, Any, Any]) -> None:
    """Runs it to its end, whatever becomes of the caller; a failure is logged."""
    task = detached(work)
    _running.add(task)
    task.add_done_callback(_ended)


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Its result. It is done to its end even if the caller is cancelled meanwhile."""
    task = detached(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        _running.add(task)
        task.add_done_callback(_ended)
        raise


def _ended(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if task.cancelled() or (error := task.exception()) is None:
        return
    if isinstance(error, RaydianceError):  # an answer that nobody waits for any longer
        log.info("background work ended with: %s", error)
    else:
        log.error("background work failed: %s", error, exc_info=error)
