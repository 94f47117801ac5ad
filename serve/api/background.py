"""Work that outlives the request that asked for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger("ray.serve")
_running: set[asyncio.Task[Any]] = set()  # asyncio itself holds tasks only weakly


def spawn(work: Coroutine[Any, Any, Any]) -> None:
    """Runs it to its end, whatever becomes of the caller; a failure is logged."""
    task = asyncio.ensure_future(work)
    _running.add(task)
    task.add_done_callback(_ended)


def _ended(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("background work failed: %s", error, exc_info=error)
