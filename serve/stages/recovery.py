"""What a walk does when something dies under a sample: who is told, who is suspected, what it goes on from."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

from ray.exceptions import RayActorError
from ray.serve.exceptions import DeploymentUnavailableError, ReplicaUnavailableError

from raydiance.serve.errors import GenerationFailed, ReplicaLost, Unavailable
from raydiance.serve.stages.messages import Checkpointed
from raydiance.serve.stages.quarantine import Quarantine
from raydiance.serve.strikes import ENCODE, MAX_REPLICAS, Strike, is_suspect, struck

log = logging.getLogger("ray.serve")
RETRY_S = 0.1
MAX_RETRY_S = 5.0
LOST_REPLICA, RECOMPUTED = "lost_replica", "recomputed_step"
"""What is counted of a job, see `why`."""
NODE_DIED = "node has died"
MAX_CALLS = 5
"""Deaths of encoders or decoders under a sample, and losses in a row of what they made, after which it is failed."""


class Keeping(Protocol):
    """See `safekeeping.Safekeeping`."""

    async def load(self, index: int) -> Checkpointed | None: ...
    def keep(self, index: int, state: Checkpointed) -> None: ...
    async def forget(self, index: int | None = None) -> None: ...


class Strikes(Protocol):
    async def __call__(self, who: str, place: int) -> Mapping[str, Strike]:
        """Writes a strike to the jobs table; all of the job as they are then. Raises Unavailable, Conflict."""


class Recovery:
    """Of one job's samples.

    Args:
        strikes: that the job has already.
        strike: None where nothing is written, for a job that is in no table.
        keeping: None where no state outlives the dispatcher.
    """

    def __init__(
        self,
        quarantine: Quarantine | None = None,
        strikes: Mapping[str, Strike] | None = None,
        strike: Strikes | None = None,
        keeping: Keeping | None = None,
    ) -> None:
        self.quarantine = quarantine or Quarantine()
        self.keeping = keeping
        self._strikes = dict(strikes or {})
        self._strike = strike
        self._tries: dict[int, int] = {}  # in a row

    def is_suspect(self, index: int, place: int) -> bool:
        return is_suspect(self._strikes, str(index), place)

    async def lost(self, index: int, place: int, end: int, error: Exception) -> None:
        """Waits a moment: then it may be tried again.

        Args:
            place: `strikes.ENCODE`, or the step that the sample was at.
            end: its last step: at it, it is decoded.

        Raises GenerationFailed where it is taken for what killed the replicas, Conflict where the job is another's.
        """
        tries = self._tries[index] = self._tries.get(index, 0) + 1
        if was_killed(error):
            await self._struck(index, place, end, error)
        elif is_gone(error) and tries > MAX_CALLS:
            raise _poison(f"sample {index}: what was made for it was lost {tries} times in a row") from error
        await asyncio.sleep(min(RETRY_S * 2 ** min(tries - 1, 10), MAX_RETRY_S))

    def advanced(self, index: int) -> None:
        """It was encoded, or stepped."""
        self._tries.pop(index, None)

    async def _struck(self, index: int, place: int, end: int, error: Exception) -> None:
        """Deaths of encoders and decoders are counted apart: others share their batches, nobody runs alone."""
        if ENCODE < place < end:
            who, limit, where = str(index), MAX_REPLICAS, f"at its step {place}, the last while no other suspect ran"
        else:
            stage = "encoded" if place == ENCODE else "decoded"
            who, limit, where = f"{index} {stage}", MAX_CALLS, f"while it was {stage}"
        try:
            if self._strike is None:
                self._strikes = struck(self._strikes, who, place)
            else:
                self._strikes = dict(await self._strike(who, place))
        except Unavailable as e:
            log.warning("a strike of sample %d is known here alone: %s", index, e)
            self._strikes = struck(self._strikes, who, place)
        if (count := self._strikes[who].count) >= limit:
            raise _poison(f"sample {index}: {count} replicas died {where}; it is taken for what killed them") from error


def _poison(message: str) -> GenerationFailed:
    return GenerationFailed(f"{message}, and not tried again", code="poison_request")


def was_killed(error: BaseException) -> bool:
    """Whether a replica died by itself: not with its node, and not because somebody wanted it to."""
    cause = _cause(error)
    return isinstance(cause, RayActorError) and not (cause.preempted or NODE_DIED in str(cause))


def is_gone(error: BaseException) -> bool:
    """Whether something was there, and is no longer; else there is nothing yet that could be asked."""
    return not isinstance(_cause(error), DeploymentUnavailableError | ReplicaUnavailableError)


def _cause(error: BaseException) -> BaseException:
    """What Ray said."""
    return error.__cause__ if isinstance(error, ReplicaLost) and error.__cause__ is not None else error
