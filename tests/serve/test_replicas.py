"""Replicas as the router tells of them: none is no replica, and what cannot be had is not reckoned with."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.local_handles import LocalHandle

from raydiance.serve.admission import Supply
from raydiance.serve.config import load_config
from raydiance.serve.replicas import Replicas
from raydiance.serve.stages import loads

SCALED = {"autoscaling.denoiser": {"min_replicas": 0, "max_replicas": 8, "start_s": 40.0}}


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "_live", None)
    monkeypatch.setattr(loads, "_watchers", [])


def replicas(**values: Any) -> Replicas:
    return Replicas(load_config(values), LocalHandle(None))  # type: ignore[arg-type]


async def test_without_a_router_those_that_are_configured_count() -> None:
    fixed = replicas(**{"denoiser.num_replicas": 3})
    assert (fixed.count(), fixed.supply().now) == (3, 3)
    await asyncio.wait_for(fixed.some(), 1)
    assert replicas(**SCALED).count() == 0


async def test_what_the_router_tells_counts_and_wakes_who_waits() -> None:
    made, seen = replicas(**SCALED), []
    made.watch(lambda: seen.append(made.count()))
    waits = asyncio.ensure_future(made.some())
    await asyncio.to_thread(loads.set_live, [])
    await asyncio.sleep(0.01)
    assert not waits.done()
    await asyncio.to_thread(loads.set_live, ["a", "b"])
    await asyncio.wait_for(waits, 1)
    assert (seen, made.count()) == ([0, 2], 2)


async def test_supply_is_what_can_be_had_when_it_has_started() -> None:
    made = replicas(**SCALED)
    assert made.supply() == Supply(0, 8, 40.0)
    loads.set_live(["a"])
    made.told(30.0, 10.0)
    assert made.supply() == Supply(1, 8, 20.0)
    made.told(30.0, 100.0)
    assert made.supply() == Supply(1, 1, 1.0), "what was asked for does not come"
