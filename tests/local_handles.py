"""The calls of a Serve handle onto an object in this process: for tests of what walks jobs, over the real stages."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any


class LocalHandle:
    """Args:
    target: a stage; its methods may be coroutines or async generators.
    """

    def __init__(self, target: Any, method: str = "") -> None:
        self.target = target
        self._method = method

    def options(self, *, method_name: str, stream: bool = False) -> LocalHandle:
        assert stream == inspect.isasyncgenfunction(getattr(self.target, method_name))
        return LocalHandle(self.target, method_name)

    def remote(self, *args: Any) -> Any:
        method = getattr(self.target, self._method)
        if inspect.isasyncgenfunction(method):
            return _Stream(method, args)
        return asyncio.ensure_future(_call(method, args))

    @asynccontextmanager
    async def choose_replica(self, **_hints: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace(replica_id="here")

    def dispatch(self, _replica: Any, *args: Any) -> Any:
        return self.remote(*args)


async def _call(method: Any, args: tuple[Any, ...]) -> Any:
    return await method(*[await a if inspect.isawaitable(a) else a for a in args])


class _Stream:
    def __init__(self, method: Any, args: tuple[Any, ...]) -> None:
        self._items = self._run(method, args)
        self._closing: asyncio.Task[None] | None = None

    async def _run(self, method: Any, args: tuple[Any, ...]) -> AsyncIterator[Any]:
        items = method(*[await a if inspect.isawaitable(a) else a for a in args])
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._items

    def cancel(self) -> None:
        self._closing = asyncio.ensure_future(self._items.aclose())  # type: ignore[attr-defined]
