"""Where one sample of a job is on its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raydiance.models.spec import Spec
from raydiance.serve.errors import Unavailable
from raydiance.serve.patience import Patience
from raydiance.serve.stages.messages import Checkpointed
from raydiance.serve.strikes import ENCODE


@dataclass(slots=True)
class Underway:
    """Args:
    last: the replica that had it.
    place: how far it has come, as `strikes` count it.
    tries: how often it was begun.
    clear: lets the next suspect go on.
    patience: with a store that a stage misses.
    """

    index: int
    spec: Spec
    checkpoint: Checkpointed | None = None
    last: str | None = None
    place: int = ENCODE
    tries: int = 0
    clear: Callable[[], None] = lambda: None
    patience: Patience | None = None

    async def away(self, error: Unavailable) -> None:
        """Waits, see `Patience`."""
        self.patience = self.patience or Patience()
        await self.patience.wait(error)

    @property
    def step(self) -> int:
        return self.spec.first_step if self.checkpoint is None else self.checkpoint.step

    @property
    def share(self) -> float:
        """Of its steps, that remain."""
        return (self.spec.num_inference_steps - self.step) / (self.spec.num_inference_steps - self.spec.first_step)
