"""The denoising loop: trajectories join and leave between steps; a failing one takes nobody with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from tests.checkpoints import save_wan

from raydiance.models import registry
from raydiance.models.family import Row
from raydiance.models.spec import Spec
from raydiance.models.wan import Wan
from raydiance.serve.engine.engine import Engine
from raydiance.serve.engine.loop import DenoisingLoop, Update
from raydiance.serve.engine.trajectory import Trajectory

TIMEOUT_S = 30


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Wan:
    torch.set_num_threads(1)
    folder = save_wan(tmp_path_factory.mktemp("wan"))
    return registry.load(folder, "denoise", "m")  # type: ignore[return-value]


@pytest.fixture
def engine(family: Wan) -> Engine:
    return Engine(family)


@pytest.fixture
def loop(engine: Engine) -> Iterator[DenoisingLoop]:
    made = DenoisingLoop(lambda: engine, max_batch_size=4, max_batch_tokens=100_000)
    yield made
    made.stop()
    assert not made.is_alive


def start(engine: Engine, steps: int = 6, seed: int = 0, guidance_scale: float = 3.0) -> Trajectory:
    spec = Spec("m", "text-to-video", "a red ball", 32, 48, 5, steps, guidance_scale, seed)
    generator = torch.Generator().manual_seed(seed)
    prompt, negative = ({"prompt_embeds": torch.randn(12, 16, generator=generator)} for _ in range(2))
    return engine.start(spec, engine.family.conditioning(spec, prompt, negative if guidance_scale > 1 else None, None))


def given(trajectory: Trajectory) -> Callable[[Engine], Trajectory]:
    return lambda _: trajectory


class Listener:
    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.ended = threading.Event()

    def __call__(self, update: Update) -> None:
        self.updates.append(update)
        if update.error is not None or update.trajectory.is_done:
            self.ended.set()

    def wait(self) -> Trajectory:
        assert self.ended.wait(TIMEOUT_S)
        if self.updates[-1].error is not None:
            raise self.updates[-1].error
        return self.updates[-1].trajectory


def alone(engine: Engine, trajectory: Trajectory) -> torch.Tensor:
    while not trajectory.is_done:
        [trajectory] = engine.step([trajectory])
    return trajectory.latents


def test_every_step_is_told_and_the_end_is_what_it_is_alone(engine: Engine, loop: DenoisingLoop) -> None:
    trajectory, listener = start(engine), Listener()
    loop.join("a", given(trajectory), listener)
    result = listener.wait()
    assert [u.trajectory.step_index for u in listener.updates] == [1, 2, 3, 4, 5, 6]
    assert (result.latents - alone(engine, trajectory)).abs().max() <= 1e-5
    assert loop.num_active == 0


def test_those_who_come_later_share_the_forwards(engine: Engine, loop: DenoisingLoop) -> None:
    first = Listener()
    loop.join("first", given(start(engine, steps=200)), first)
    while len(first.updates) < 3:
        time.sleep(0.001)
    others = [(start(engine, steps=5 + i, seed=i, guidance_scale=1.0 + i), Listener()) for i in range(3)]
    for i, (trajectory, listener) in enumerate(others):
        loop.join(f"other-{i}", given(trajectory), listener)
    for trajectory, listener in others:
        assert (listener.wait().latents - alone(engine, trajectory)).abs().max() <= 1e-5
    loop.leave("first")
    assert engine.num_rows > engine.num_forwards - sum(t.num_steps for t, _ in others)


def test_leaving_stops_within_one_step(engine: Engine, loop: DenoisingLoop) -> None:
    listener = Listener()
    loop.join("a", given(start(engine, steps=10_000)), listener)
    while not listener.updates:
        time.sleep(0.001)
    loop.leave("a")
    told = len(listener.updates)
    time.sleep(0.3)
    assert len(listener.updates) <= told + 1
    assert not listener.ended.is_set()


class Poisoned(Engine):
    """Its forward raises whenever seed 13 is in it."""

    def __init__(self, family: Wan, error: Exception) -> None:
        super().__init__(family)
        self._error = error

    def _predict(self, rows: Sequence[Row]) -> list[torch.Tensor]:  # type: ignore[override]
        if any(row.spec.seed == 13 for row in rows):
            raise self._error
        return super()._predict(rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [ValueError("poison"), torch.OutOfMemoryError("too big")], ids=["raises", "oom"])
def test_a_failing_one_takes_nobody_with_it(family: Wan, error: Exception) -> None:
    engine = Poisoned(family, error)
    loop = DenoisingLoop(lambda: engine, max_batch_size=4, max_batch_tokens=100_000)
    listeners = {seed: Listener() for seed in (1, 2, 13, 4)}
    for seed, listener in listeners.items():
        loop.join(str(seed), given(start(engine, seed=seed)), listener)
    try:
        for seed in (1, 2, 4):
            assert listeners[seed].wait().is_done
        with pytest.raises(type(error)):
            listeners[13].wait()
    finally:
        loop.stop()


def test_an_id_is_denoised_once(engine: Engine, loop: DenoisingLoop) -> None:
    loop.join("a", given(start(engine, steps=10_000)), Listener())
    with pytest.raises(ValueError, match="already"):
        loop.join("a", given(start(engine)), Listener())
    loop.leave("a")
