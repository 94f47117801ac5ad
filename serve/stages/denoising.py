"""Denoising one sample, as whoever asked for it sees it: events, or the loss of the replica and what is left of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ray.exceptions import ObjectLostError, RayActorError
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from raydiance.serve.calls import stream
from raydiance.serve.errors import ReplicaLost
from raydiance.serve.stages.messages import Checkpointed, StageEvent, Work

LOST = (RayActorError, ObjectLostError, DeploymentUnavailableError)
"""Also where it is the cause of a RayTaskError: what a replica was given died with the one that made it."""


@asynccontextmanager
async def denoising(
    denoiser: DeploymentHandle[Any], work: Work, embeddings: Any, inputs: Any
) -> AsyncIterator[AsyncIterator[StageEvent]]:
    """The events of a work. Left early, for whatever reason, the replica drops the trajectory within one step.

    Raises ReplicaLost where the replica dies, with the last checkpoint that came, else the one that it began from.
    """
    last = Checkpointed(0, b"") if work.checkpoint is None else Checkpointed(work.step, work.checkpoint)

    async def kept(events: AsyncIterator[StageEvent]) -> AsyncIterator[StageEvent]:
        nonlocal last
        async for event in events:
            if isinstance(event, Checkpointed):
                last = event
            yield event

    try:
        async with stream(denoiser, "generate", work, embeddings, inputs) as events:
            yield kept(events)
    except LOST as e:
        raise ReplicaLost(f"the replica that denoised {work.id} is lost: {e}", last.step, last.data or None) from e
