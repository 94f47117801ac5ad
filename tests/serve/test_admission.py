"""What can be done in time is let in; what cannot is told when it could."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiance.serve.admission import Due, Supply, judge

NOW = 1000.0


def test_alone_it_is_done_in_what_it_takes() -> None:
    found = judge(NOW, [], Due(NOW + 10, 3.0), around_s=0.5, supply=Supply(1, 1))
    assert (found.is_admitted, found.starts_in_s, found.finish) == (True, 0.0, NOW + 3.5)


def test_what_is_due_later_does_not_count_before_it() -> None:
    due = [Due(NOW + 5, 4.0), Due(NOW + 100, 50.0), Due(math.inf, 1e6)]
    found = judge(NOW, due, Due(NOW + 10, 3.0), around_s=0.0, supply=Supply(1, 1))
    assert (found.is_admitted, found.starts_in_s, found.finish) == (True, 4.0, NOW + 7)


def test_what_would_be_late_is_told_when_it_would_not_be() -> None:
    due = [Due(NOW + 10, 9.0)]
    found = judge(NOW, due, Due(NOW + 10, 3.0), around_s=0.0, supply=Supply(1, 1))
    assert found.retry_after_s == pytest.approx(2.0)
    later = judge(NOW + 2.0, [Due(NOW + 10, 7.0)], Due(NOW + 12, 3.0), around_s=0.0, supply=Supply(1, 1))
    assert later.is_admitted


def test_what_would_make_others_late_is_refused_but_not_for_what_is_late_already() -> None:
    tight, lost = Due(NOW + 10, 9.0), Due(NOW + 10, 90.0)
    own = Due(NOW + 5, 3.0)
    assert judge(NOW, [tight], own, around_s=0.0, supply=Supply(1, 1)).retry_after_s == pytest.approx(7.0)
    assert judge(NOW, [lost], own, around_s=0.0, supply=Supply(1, 1)).is_admitted


def test_more_replicas_do_more() -> None:
    due = [Due(NOW + 10, 18.0)]
    assert not judge(NOW, due, Due(NOW + 10, 1.0), around_s=0.0, supply=Supply(1, 1)).is_admitted
    assert judge(NOW, due, Due(NOW + 10, 1.0), around_s=0.0, supply=Supply(2, 2)).is_admitted


def test_without_a_deadline_it_is_always_let_in() -> None:
    assert judge(NOW, [Due(NOW + 1, 99.0)] * 50, Due(math.inf, 1e5), around_s=1.0, supply=Supply(1, 1)).is_admitted


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0.1, 9)), max_size=10), st.floats(0.1, 50), st.floats(0.1, 9))
def test_who_comes_again_when_told_is_let_in(due: list[tuple[float, float]], slo_s: float, seconds: float) -> None:
    """If meanwhile the work is done in the order of deadlines, and nothing else comes."""
    before = [Due(NOW + at, s) for at, s in due]
    found = judge(NOW, before, Due(NOW + slo_s, seconds), around_s=0.0, supply=Supply(1, 1))
    if found.is_admitted or seconds > slo_s:
        return
    left, rest = found.retry_after_s, []
    for each in sorted(before, key=lambda d: d.deadline):
        done = min(left, each.seconds)
        left -= done
        rest.append(Due(each.deadline, each.seconds - done))
    at = NOW + found.retry_after_s
    assert judge(at, rest, Due(at + slo_s, seconds), around_s=0.0, supply=Supply(1, 1)).retry_after_s <= 0.2


def test_where_no_replica_runs_work_begins_when_one_has_started() -> None:
    found = judge(NOW, [], Due(NOW + 100, 3.0), around_s=0.5, supply=Supply(0, 4, 60.0))
    assert (found.is_admitted, found.starts_in_s, found.finish) == (True, 60.0, NOW + 63.5)
    soon = judge(NOW, [], Due(NOW + 10, 3.0), around_s=0.0, supply=Supply(0, 4, 60.0))
    assert soon.retry_after_s == pytest.approx(53.0)


def test_replicas_that_are_to_come_count_from_when_they_serve() -> None:
    due = [Due(NOW + 100, 120.0)]
    own = Due(NOW + 100, 10.0)
    assert not judge(NOW, due, own, around_s=0.0, supply=Supply(1, 1)).is_admitted
    found = judge(NOW, due, own, around_s=0.0, supply=Supply(1, 4, 40.0))
    assert (found.is_admitted, found.starts_in_s) == (True, 40.0 + 80.0 / 4)
    assert judge(NOW, [Due(NOW + 100, 30.0)], own, around_s=0.0, supply=Supply(1, 4, 40.0)).starts_in_s == 30.0


@given(st.integers(0, 5), st.integers(1, 9), st.floats(0, 90), st.floats(0, 900), st.floats(0, 900))
def test_more_work_is_done_later_and_more_replicas_are_sooner(
    now: int, later: int, after_s: float, a: float, b: float
) -> None:
    supply, less, more = Supply(now, max(now, later), after_s), *sorted((a, b))
    assert supply.until(less) <= supply.until(more) + 1e-9
    assert Supply(now, max(now, later) + 1, after_s).until(more) <= supply.until(more) + 1e-9
