"""The ranks that a denoising loop works with: one in its own process, or several elsewhere. No torch."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from raydiance.models.card import ModelCard
from raydiance.serve.engine.orders import Outcome, Report, Standing, Start, Turn

if TYPE_CHECKING:
    from raydiance.serve.engine.engine import Engine


class RanksLost(RuntimeError):
    """A rank died or hangs. The replica is broken as a whole: what it held goes on elsewhere from its checkpoints."""


class Fleet(Protocol):
    """Every method is called from one thread."""

    size: int
    card: ModelCard

    def begin(self, start: Start) -> tuple[Standing, Outcome]:
        """Holds a trajectory on every rank. Raises what the family raises, and RanksLost."""
        ...

    def drop(self, ids: Sequence[str]) -> None: ...

    def step(self, turns: Sequence[Turn]) -> list[Report | Exception]:
        """Turns on meshes that are apart, at once: a report each, or what it raised. Raises RanksLost."""
        ...


class Alone:
    """One rank, in this process."""

    size = 1

    def __init__(self, engine: Engine) -> None:
        from raydiance.serve.engine.rank import Rank

        self.rank = Rank(engine)
        self.card = engine.family.card

    def begin(self, start: Start) -> tuple[Standing, Outcome]:
        return self.rank.begin(start)

    def drop(self, ids: Sequence[str]) -> None:
        self.rank.drop(ids)

    def step(self, turns: Sequence[Turn]) -> list[Report | Exception]:
        return [self._step(turn) for turn in turns]

    def _step(self, turn: Turn) -> Report | Exception:
        try:
            report = self.rank.turn(turn)
        except Exception as error:  # noqa: BLE001 - the loop finds out whose it is
            traceback.clear_frames(error.__traceback__)  # what they hold takes memory that the next try needs
            return error
        return report or RuntimeError("the only rank leads every turn")
