"""Siblings of a group go to the replica that had the last of them, where loads are equal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raydiance.serve.stages import loads

ROUND = ("acme", "round-1")


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> Iterator[None]:
    loads._homes.clear()
    yield
    loads._homes.clear()


def test_a_group_decides_where_loads_are_equal() -> None:
    loads.settle(ROUND, "b")
    near = loads.home_of(ROUND)
    assert loads.in_order(["a", "b", "c"], None, near) == ["b", "a", "c"]
    with loads.held("b", 0.1):
        assert loads.in_order(["a", "b", "c"], None, near) == ["a", "c", "b"]
    assert loads.in_order(["a", "b", "c"], "c", near) == ["c", "b", "a"], "its own state is worth more"
    assert loads.in_order(["a", "c"], None, near) == ["a", "c"], "that replica is gone"


def test_a_group_is_its_tenants_and_the_last_is_remembered() -> None:
    loads.settle(ROUND, "a")
    loads.settle(ROUND, "b")
    loads.settle(None, "c")
    assert loads.home_of(ROUND) == "b"
    assert loads.home_of(("globex", "round-1")) is None
    assert loads.home_of(None) is None


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "MAX_HOMES", 2)
    for i in range(4):
        loads.settle(("acme", str(i)), "a")
        loads.settle(("acme", "0"), "a")
    assert list(loads._homes) == [("acme", "3"), ("acme", "0")]
