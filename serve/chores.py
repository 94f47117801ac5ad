"""What has to be done now and then, once per cluster: webhooks delivered, expired jobs and files of no job removed."""

from __future__ import annotations

import asyncio
import logging

from raydiance.serve.config import Config
from raydiance.serve.errors import RaydianceError
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.job import now
from raydiance.serve.storage.jobs import JobStore
from raydiance.serve.storage.sweep import ORPHAN_AGE_S, remove_orphans, sweep
from raydiance.serve.webhooks import Deliverer

log = logging.getLogger("ray.serve")
WEBHOOK_INTERVAL_S = 0.5


class Chores:
    def __init__(self, config: Config, jobs: JobStore, artifacts: ArtifactStore) -> None:
        self._config = config
        self._jobs = jobs
        self._artifacts = artifacts
        self._deliverer = None if config.webhooks.secret is None else Deliverer(jobs, config.webhooks, config.network)

    async def run(self) -> None:
        """Goes on until cancelled; a store that is away for a while is logged and tried again."""
        swept_at = orphans_at = float("-inf")
        while True:
            try:
                if self._deliverer is not None:
                    await self._deliverer.run_once(now())
                if now() - swept_at >= self._config.storage.sweep_interval_s:
                    swept_at = now()
                    if removed := await sweep(self._jobs, self._artifacts, now()):
                        log.info("%d expired jobs were removed", removed)
                    if now() - orphans_at >= ORPHAN_AGE_S:  # it lists the whole store, so not at every sweep
                        if removed := await remove_orphans(self._jobs, self._artifacts, now()):
                            log.info("%d inputs of no job were removed", removed)
                        orphans_at = now()
            except (RaydianceError, OSError) as e:
                log.warning("chores are tried again: %s", e)
            await asyncio.sleep(WEBHOOK_INTERVAL_S)
