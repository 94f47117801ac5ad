"""A lease of denoising one sample, as whoever asked for it sees it: events, or the loss of the replica."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from ray.exceptions import ActorDiedError, ObjectLostError, RayActorError
from ray.serve.exceptions import DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle

from raydiance.serve.errors import ReplicaLost
from raydiance.serve.stages import loads
from raydiance.serve.stages.messages import Checkpointed, Leased, StageEvent, Work

LOST = (RayActorError, ObjectLostError, DeploymentUnavailableError, ReplicaUnavailableError)
"""Also where it is the cause of a RayTaskError: what a replica was given died with the one that made it."""


class Denoising:
    """Attributes:
    replica_id: that has the sample.
    events: of the lease.
    """

    def __init__(self, replica_id: str, events: AsyncIterator[StageEvent]) -> None:
        self.replica_id = replica_id
        self.events = events


@asynccontextmanager
async def denoising(
    denoiser: DeploymentHandle[Any],
    work: Work,
    embeddings: Any,
    inputs: Any,
    *,
    seconds: float = 0.0,
    last: str | None = None,
    group: loads.Group | None = None,
) -> AsyncIterator[Denoising]:
    """The events of a work's lease. Left early, for whatever reason, the replica drops the trajectory within one step.

    Args:
        seconds: that it still takes.
        last: the replica that had it before.
        group: it goes where this was, if loads are equal.

    Raises StateGone, by its task, where the replica that had it keeps it no longer: send it again, without `last`.
    Raises ReplicaLost where the replica dies, with the last checkpoint that came, else the one that it began from.
    """
    kept = Checkpointed(0, b"") if work.checkpoint is None else Checkpointed(work.step, work.checkpoint)

    async def keeping(events: AsyncIterator[StageEvent]) -> AsyncIterator[StageEvent]:
        nonlocal kept
        async for event in events:
            if isinstance(event, Checkpointed | Leased):
                kept = Checkpointed(event.step, event.data)
            yield event

    generate = denoiser.options(method_name="generate", stream=True)
    chosen: str | None = None
    try:
        hints = {"last": last, "near": loads.home_of(group)}
        async with generate.choose_replica(**hints) as replica, _held(replica.replica_id, seconds):
            chosen = replica.replica_id
            loads.settle(group, chosen)
            if chosen == last and work.checkpoint is not None:  # it keeps both halves of the state for a while
                sent: tuple[Any, ...] = replace(work, checkpoint=None), None, None
            else:
                sent = work, embeddings, inputs
            events = cast("Any", generate.dispatch(replica, *sent))
            try:
                yield Denoising(chosen, keeping(events))
            finally:
                events.cancel()
    except LOST as e:
        if chosen is not None and isinstance(e, ActorDiedError):
            loads.lose(chosen)
        raise ReplicaLost(f"the replica that denoised {work.id} is lost: {e}", kept.step, kept.data or None) from e


@asynccontextmanager
async def _held(replica_id: str, seconds: float) -> AsyncIterator[None]:
    with loads.held(replica_id, seconds):
        yield
