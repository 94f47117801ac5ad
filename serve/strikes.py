"""Where a job was when what ran it died, and how often it died there without the job having come further. Pure.

One that dies at the same place again is taken for what killed it; one that has come further since is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import BaseModel, ConfigDict

MAX_REPLICAS: Final = 2
"""That a sample may take down at one place, before it is failed."""
MAX_DISPATCHERS: Final = 5
"""That a job may be begun by without coming further."""
ENCODE: Final = -1
"""The place of a sample whose texts or inputs are encoded; one that is denoised is at its step."""


class Strike(BaseModel):
    """Args:
    place: the furthest at which it died.
    count: of deaths since it came so far.
    """

    model_config = ConfigDict(frozen=True)

    place: int
    count: int


Strikes = Mapping[str, Strike]


def struck(strikes: Strikes, who: str, place: int) -> dict[str, Strike]:
    """With one more death, of `who` (a sample's index, or the job's dispatcher) at a place."""
    before = strikes.get(who)
    if before is None or place > before.place:
        return {**strikes, who: Strike(place=place, count=1)}
    return {**strikes, who: Strike(place=before.place, count=before.count + 1)}


def is_suspect(strikes: Strikes, who: str, place: int) -> bool:
    """Whether it has not come further than where something died under it."""
    return (strike := strikes.get(who)) is not None and place <= strike.place
