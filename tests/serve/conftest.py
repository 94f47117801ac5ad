"""A house of real stages, for tests of what walks jobs through them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoints import save_wan
from tests.serve.house import House

from raydiance.serve import dispatcher, ownership
from raydiance.serve.config import ModelConfig
from raydiance.serve.stages import recovery, refs, reporter, walk


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return ModelConfig(path=str(save_wan(tmp_path_factory.mktemp("wan"))), name="m")


@pytest.fixture
async def build(
    tmp_path: Path, model: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., House]]:
    torch.set_num_threads(1)
    monkeypatch.setattr(refs, "put", lambda value, loop: value)  # no cluster here: handed over as it is
    monkeypatch.setattr(dispatcher, "LOOK_S", 0.05)
    monkeypatch.setattr(ownership, "BEAT_S", 0.05)
    monkeypatch.setattr(recovery, "RETRY_S", 0.01)
    monkeypatch.setattr(walk, "SAVE_S", 0.0)
    monkeypatch.setattr(reporter, "CHECKPOINT_SHARE", float("inf"))  # as often as it is said
    houses: list[House] = []

    def make(**settings: Any) -> House:
        houses.append(House(tmp_path, model, **settings))
        return houses[-1]

    yield make
    for house in houses:
        await house.close()
