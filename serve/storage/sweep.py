"""Forgetting what has expired: first the files, then the row, so that a sweep that was cut short is taken up again.

Inputs are stored before their job's row is written: a process that dies in between leaves files of no job.
Only old ones are taken for that: a young one may be of a job that is being accepted right now.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict

from raydiance.serve.errors import NotFound
from raydiance.serve.request import TextInput
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.job import Job, artifact_prefix
from raydiance.serve.storage.jobs import JobStore

ORPHAN_AGE_S = 3600
_JOB_FILE = re.compile(r"(?P<job_id>[^/]+)/(?P<name>[^/]+)")


async def sweep(jobs: JobStore, artifacts: ArtifactStore, now: float) -> int:
    """Remove the files and rows of all jobs that have expired at `now` (Unix seconds); returns how many.

    Charges that count no longer go too, and groups of which no job is left.

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
    await asyncio.to_thread(jobs.forget_charges, now)
    await asyncio.to_thread(jobs.forget_groups, now - jobs.ended_ttl_s)
    return removed


async def remove_orphans(jobs: JobStore, artifacts: ArtifactStore, now: float) -> int:
    """Remove the stored inputs that no job names and that are older than an hour at `now`; returns how many.

    Raises:
        Unavailable: one of the stores does not work; what is left is for the next sweep.
    """
    removed = 0
    for job_id, written in (await _inputs(artifacts)).items():
        old = [key for key, at in written.items() if now - at > ORPHAN_AGE_S]
        if not old:
            continue
        named = _named(await _find(jobs, job_id))
        orphans = [key for key in old if key not in named]
        await artifacts.delete(orphans)
        removed += len(orphans)
    return removed


async def _inputs(artifacts: ArtifactStore) -> dict[str, dict[str, float]]:
    """When each stored input was written, by job and key."""
    root = artifact_prefix("")
    found: dict[str, dict[str, float]] = defaultdict(dict)
    async for key, at in artifacts.list(root.rstrip("/")):
        match = _JOB_FILE.fullmatch(key.removeprefix(root))
        if match is not None and match["name"].startswith("input-"):
            found[match["job_id"]][key] = at
    return found


async def _find(jobs: JobStore, job_id: str) -> Job | None:
    try:
        return await asyncio.to_thread(jobs.get, job_id)
    except NotFound:
        return None


def _named(job: Job | None) -> set[str]:
    inputs = [] if job is None else job.request.inputs
    return {i.source.artifact for i in inputs if not isinstance(i, TextInput) and i.source.artifact is not None}
