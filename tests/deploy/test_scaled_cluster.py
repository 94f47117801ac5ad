"""The policy in a real Serve controller, where policies are known to fail: it must not raise, be asked in vain, believe
what is old, or go up and down with its load."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.deploy.scaled_cluster import ScaledCluster, scaled_cluster

pytestmark = pytest.mark.slow
IDLE_S, COOLDOWN_S, STALE_S = 4.0, 4.0, 3.0
MUCH = {"work": [[30.0, 400.0, 8, "interactive"]]}


@pytest.fixture(scope="module")
def program() -> Iterator[ScaledCluster]:
    rules = {"min_replicas": 0, "max_replicas": 4, "idle_s": IDLE_S, "cooldown_s": COOLDOWN_S, "drain_s": 10.0}
    with scaled_cluster(**rules, start_s=2.0, stale_s=STALE_S) as program:
        yield program


@pytest.fixture
def cluster(program: ScaledCluster) -> ScaledCluster:
    """With no replica, and nothing to do."""
    program.tell()
    program.wait(0)
    return program


def targets(seen: dict[str, Any]) -> list[int]:
    return [target for _, target in seen["targets"]]


def test_from_none_to_many_at_once(cluster: ScaledCluster) -> None:
    before = len(cluster.seen()["targets"])
    cluster.tell(**MUCH)
    seen = cluster.wait(4)
    assert targets(seen)[before - 1 :] == [0, 4]
    assert "0 -> 4 replicas (0 serve): 400.0 s of work in 8 samples" in seen["log"][-1]


def test_what_raises_holds_the_count_is_told_once_and_stops_nothing(cluster: ScaledCluster) -> None:
    cluster.tell(work=[[30.0, 5.0, 1, "standard"]])
    before = cluster.wait(1)
    for damaged in ("no JSON", '{"is_waking": false}'):
        cluster.tell(raw=damaged)
        time.sleep(2.0)
        seen = cluster.seen()
        assert targets(seen) == targets(before)
        assert "autoscaling of Denoiser-m fails: 1 replicas held" in seen["log"][-1]
    assert sum("fails" in line for line in seen["log"]) == 2
    cluster.tell(**MUCH)
    cluster.wait(4)


def test_what_is_old_changes_nothing(cluster: ScaledCluster) -> None:
    cluster.tell(**MUCH)
    before = cluster.wait(4)
    cluster.tell(silent=True)
    time.sleep(STALE_S + IDLE_S + COOLDOWN_S)
    seen = cluster.seen()
    assert targets(seen) == targets(before)
    assert "s old: 4 held" in seen["log"][-1]


def test_a_load_that_comes_and_goes_moves_it_once(cluster: ScaledCluster) -> None:
    before = len(cluster.seen()["targets"])
    for _ in range(6):
        cluster.tell(**MUCH)
        time.sleep(1.5)
        cluster.tell()
        time.sleep(1.5)
    assert targets(cluster.seen())[before - 1 :] == [0, 4]
    last = cluster.wait(0)
    assert targets(last)[-1] == 0
    assert sorted(targets(last)[before:], reverse=True) == targets(last)[before:]
