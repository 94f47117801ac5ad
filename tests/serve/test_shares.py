"""Weights of tenants are read once in a while."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydiance.serve import shares
from raydiance.serve.shares import Weights
from raydiance.serve.storage.jobs import JobStore


async def test_a_weight_is_kept_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = JobStore(f"sqlite:///{tmp_path}/jobs.db")
    jobs.set_tenant("acme", weight=3.0)
    asked = 0
    weight_of = jobs.weight_of

    def counted(tenant: str) -> float:
        nonlocal asked
        asked += 1
        return weight_of(tenant)

    monkeypatch.setattr(jobs, "weight_of", counted)
    weights = Weights(jobs)
    assert [await weights.of("acme") for _ in range(5)] == [3.0] * 5
    assert await weights.of("globex") == 1.0
    assert asked == 2
    jobs.set_tenant("acme", weight=2.0)
    assert await weights.of("acme") == 3.0
    monkeypatch.setattr(shares, "FRESH_S", 0.0)
    weights = Weights(jobs)
    assert await weights.of("acme") == 2.0
    jobs.set_tenant("acme", weight=4.0)
    assert await weights.of("acme") == 4.0
    jobs.close()
