"""Which deaths are held against a job: those at a place that it has not come beyond."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raydiance.serve.strikes import Strike, is_suspect, struck

PLACES = st.lists(st.integers(-1, 20), min_size=1, max_size=30)


def test_whoever_comes_further_is_no_culprit() -> None:
    strikes: dict[str, Strike] = {}
    for place, count in ((3, 1), (3, 2), (5, 1), (4, 2), (5, 3), (6, 1)):
        strikes = struck(strikes, "0", place)
        assert strikes["0"].count == count
    assert not is_suspect(strikes, "1", 0)
    assert is_suspect(strikes, "0", 6)
    assert not is_suspect(strikes, "0", 7)


@given(PLACES, PLACES)
def test_each_is_struck_for_itself_and_counts_since_its_furthest(one: list[int], two: list[int]) -> None:
    strikes: dict[str, Strike] = {}
    for place in one:
        strikes = struck(strikes, "one", place)
    for place in two:
        strikes = struck(strikes, "two", place)
    for who, places in (("one", one), ("two", two)):
        assert strikes[who] == Strike(place=max(places), count=len(places) - places.index(max(places)))
