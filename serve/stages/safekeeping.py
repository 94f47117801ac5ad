"""The last state of each sample of a long job, in the artifact store: for the case that its dispatcher dies too."""

from __future__ import annotations

import logging
import time

from raydiance.serve.background import spawn
from raydiance.serve.errors import NotFound, Unavailable
from raydiance.serve.stages.messages import Checkpointed
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.job import Job, artifact_prefix

log = logging.getLogger("ray.serve")


class Safekeeping:
    """Args:
    every_s: seconds between two states of a sample that are stored; what is done sooner leaves none.
    """

    def __init__(self, artifacts: ArtifactStore, job: Job, every_s: float) -> None:
        self._artifacts = artifacts
        self._prefix = f"{artifact_prefix(job.id)}/states"
        self._may_be_there = job.attempt > 0  # from a dispatcher that had it before
        self._every_s = every_s
        self._since = time.monotonic()
        self._kept: dict[int, tuple[float, str]] = {}  # by sample: when, and its file
        self._writing: set[int] = set()
        self._is_over = False

    async def load(self, index: int) -> Checkpointed | None:
        """The furthest state of a sample that is stored."""
        found: list[tuple[int, str]] = []
        try:
            async for key, _ in self._artifacts.list(f"{self._prefix}/{index}"):
                name = key.rsplit("/", 1)[1]
                if name.isdecimal():
                    found.append((int(name), key))
            if not found:
                return None
            step, key = max(found)
            data = await self._artifacts.get(key)
        except (NotFound, Unavailable) as e:
            log.warning("the state of sample %d below %s is not to be had, it starts anew: %s", index, self._prefix, e)
            return None
        self._kept[index] = time.monotonic(), key
        return Checkpointed(step, data)

    def keep(self, index: int, state: Checkpointed) -> None:
        """Stores it in the background, if it is time."""
        last = self._kept.get(index, (self._since, ""))[0]
        if index not in self._writing and not self._is_over and time.monotonic() - last >= self._every_s:
            self._writing.add(index)
            spawn(self._write(index, state))

    async def _write(self, index: int, state: Checkpointed) -> None:
        key, before = f"{self._prefix}/{index}/{state.step}", self._kept.get(index)
        try:
            await self._artifacts.put(key, state.data)
            self._kept[index] = time.monotonic(), key
            if before is not None and before[1] not in ("", key):
                await self._artifacts.delete([before[1]])
        except Unavailable as e:
            log.warning("state %s is not stored, the next one may be: %s", key, e)
            self._kept[index] = time.monotonic(), "" if before is None else before[1]
        finally:
            self._writing.discard(index)
        if self._is_over:
            await self.forget()

    async def forget(self, index: int | None = None) -> None:
        """All of a sample, or of the job, which is over then. Raises Unavailable."""
        if index is not None:
            self._kept.pop(index, None)
            await self._artifacts.delete_prefix(f"{self._prefix}/{index}")
            return
        self._is_over = True
        if self._kept or self._writing or self._may_be_there:
            await self._artifacts.delete_prefix(self._prefix)
