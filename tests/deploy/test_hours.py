"""Spare replicas by the hours of the week, in the operator's own time."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from raydiance.deploy.hours import DAYS, Hours, spares_at

WORK = Hours(DAYS[:5], 8 * 60, 18 * 60, 2)
NIGHT = Hours(("fri",), 22 * 60, 6 * 60, 3)


@pytest.mark.parametrize(
    ("at", "spares"),
    [
        ("2026-12-04 07:59", 0),  # a Friday
        ("2026-12-04 08:00", 2),
        ("2026-12-04 17:59", 2),
        ("2026-12-04 18:00", 0),
        ("2026-12-04 22:00", 3),
        ("2026-12-05 05:59", 3),
        ("2026-12-05 06:00", 0),
        ("2026-12-05 22:30", 0),
    ],
)
def test_hours(at: str, spares: int) -> None:
    unix_s = datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp()
    assert spares_at([WORK, NIGHT], unix_s, "UTC") == spares


def test_they_are_the_hours_of_a_place() -> None:
    unix_s = datetime(2026, 7, 3, 6, 30, tzinfo=UTC).timestamp()  # summer: 08:30 there
    assert spares_at([WORK], unix_s, "Europe/Berlin") == 2
    assert spares_at([WORK], unix_s, "UTC") == 0
    assert spares_at([], unix_s, "UTC") == 0
