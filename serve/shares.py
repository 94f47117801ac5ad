"""Weights of tenants in sharing, as the table had them a moment ago: not asked for each job anew."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict

from raydiance.serve.patience import patiently
from raydiance.serve.storage.jobs import JobStore

FRESH_S = 5.0
MAX_TENANTS = 4096


class Weights:
    """Belongs to one event loop."""

    def __init__(self, jobs: JobStore) -> None:
        self._jobs = jobs
        self._known: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tenant -> until when, weight

    async def of(self, tenant: str) -> float:
        """Raises Unavailable after a while."""
        until, weight = self._known.get(tenant, (0.0, 1.0))
        if time.monotonic() < until:
            return weight
        weight = await patiently(lambda: asyncio.to_thread(self._jobs.weight_of, tenant))
        self._known[tenant] = time.monotonic() + FRESH_S, weight
        self._known.move_to_end(tenant)
        while len(self._known) > MAX_TENANTS:
            self._known.popitem(last=False)
        return weight
