"""Hours of the week at which spare replicas are kept. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True)
class Hours:
    """Args:
    days: on which they begin.
    start: minutes of the day; end: the same, on the next day where it is not after `start`.
    spares: replicas above what is needed.
    """

    days: tuple[str, ...]
    start: int
    end: int
    spares: int

    def covers(self, day: int, minute: int) -> bool:
        """Args: day: of the week, 0 for Monday."""
        if self.start < self.end:
            return DAYS[day] in self.days and self.start <= minute < self.end
        today, yesterday = DAYS[day] in self.days, DAYS[day - 1] in self.days
        return (today and minute >= self.start) or (yesterday and minute < self.end)


def spares_at(schedule: Sequence[Hours], unix_s: float, timezone: str) -> int:
    """Of all hours that cover a moment the most spares; 0 where none does."""
    if not schedule:
        return 0
    at = datetime.fromtimestamp(unix_s, ZoneInfo(timezone))
    covering = (hours.spares for hours in schedule if hours.covers(at.weekday(), at.hour * 60 + at.minute))
    return max(covering, default=0)
