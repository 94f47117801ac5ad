"""What an ingress has refused lately: an equal request is told so at once, without asking the dispatcher again.

A request that was refused for `retry_after_s` would be refused until then, whatever else comes meanwhile; so would one
that takes the same and is wanted as soon. Where something was given up, what is known no longer holds (`forget`).
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from raydiance.serve.errors import TooManyRequests

FRESH_S = 1.0
"""For which a refusal holds at most: prices are not exact, and what other ingresses give up is not told here."""
CONTENDED_S = 5.0
"""After a refusal, few equal requests ask the dispatcher at once for so long: most need not ask at all."""
AT_ONCE = 4
MAX_KINDS = 1024


@dataclass(slots=True)
class _Kind:
    """Args: until: when the refusal ends; since: when it was made. Both by the clock."""

    message: str = ""
    until: float = 0.0
    since: float = -CONTENDED_S
    asking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))


class Refusals:
    """Belongs to one event loop. Args: clock: of seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: OrderedDict[tuple[str, Hashable], _Kind] = OrderedDict()

    @asynccontextmanager
    async def asking(self, model: str, kind: Hashable) -> AsyncIterator[None]:
        """Inside of it the dispatcher may be asked. Raises TooManyRequests where it need not be.

        Args:
            kind: what a request takes, and by when it is wanted; requests that agree in it are treated alike.
        """
        found = self._kinds.get((model, kind))
        if found is None or self._clock() - found.since >= CONTENDED_S:
            yield
            return
        self._check(found)
        async with found.asking:
            self._check(found)
            yield

    def keep(self, model: str, kind: Hashable, refusal: TooManyRequests) -> None:
        """The dispatcher has refused a request."""
        at = self._clock()
        found = self._kinds.setdefault((model, kind), _Kind())
        found.message, found.until, found.since = refusal.message, at + refusal.retry_after_s, at
        self._kinds.move_to_end((model, kind))
        while len(self._kinds) > MAX_KINDS:
            self._kinds.popitem(last=False)

    def forget(self, model: str) -> None:
        """Something that counted is given up: what was refused may be let in."""
        for (name, _), found in self._kinds.items():
            if name == model:
                found.until = 0.0

    def _check(self, found: _Kind) -> None:
        at = self._clock()
        if at < min(found.until, found.since + FRESH_S):
            raise TooManyRequests(found.message, found.until - at)
