"""Where a sample goes: to the replica with the least to do, where its state is, near its group."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiance.serve.stages import loads


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.001, 50)), max_size=12))
def test_what_was_held_is_given_back(given: list[tuple[str, float]]) -> None:
    def hold(rest: list[tuple[str, float]]) -> None:
        if not rest:
            for name in "abc":
                assert loads.of(name) == pytest.approx(sum(s for each, s in given if each == name))
            return
        with loads.held(*rest[0]):
            hold(rest[1:])

    hold(given)
    assert [loads.of(name) for name in "abc"] == [0.0, 0.0, 0.0]


def test_the_one_with_the_least_to_do_comes_first() -> None:
    with loads.held("a", 3.0), loads.held("b", 1.0):
        assert loads.in_order(["a", "b", "c"], None) == ["c", "b", "a"]


def test_a_state_goes_on_where_it_was_unless_another_has_much_less_to_do() -> None:
    with loads.held("a", loads.MOVE_S / 2):
        assert loads.in_order(["a", "b"], "a") == ["a", "b"]
    with loads.held("a", 2 * loads.MOVE_S):
        assert loads.in_order(["a", "b"], "a") == ["b", "a"]
    assert loads.in_order(["b", "c"], "a") == ["b", "c"]  # it is gone


def test_what_raises_inside_is_given_back_too() -> None:
    with pytest.raises(RuntimeError), loads.held("a", 3.0):
        raise RuntimeError
    assert loads.of("a") == 0.0


def test_one_that_has_died_gets_nothing_more_whatever_a_router_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "_lost", set())
    loads.lose("a")
    assert loads.in_order(["a", "b"], "a") == ["b"]
    assert loads.in_order(["a"], None) == [], "it waits until there is another"
