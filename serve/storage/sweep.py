"""Forgetting what has expired: first the files, then the row, so that a sweep that was cut short is taken up again."""

from __future__ import annotations

import asyncio

from raydiance.serve.errors import NotFound
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.job import artifact_prefix
from raydiance.serve.storage.jobs import JobStore


async def sweep(jobs: JobStore, artifacts: ArtifactStore, now: float) -> int:
    """Remove the files and rows of all jobs that have expired at `now` (Unix seconds); returns how many.

    Raises:
        Unavailable: one of the stores does not work; what is left is for the next sweep.
    """
    removed = 0
    while expired := await asyncio.to_thread(jobs.expired, now):
        for job in expired:
            await artifacts.delete([a.key for a in job.artifacts])
            await artifacts.delete_prefix(artifact_prefix(job.id))
            try:
                await asyncio.to_thread(jobs.delete, job.id)
            except NotFound:  # another sweep was faster
                continue
            removed += 1
    return removed
