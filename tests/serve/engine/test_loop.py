"""The denoising loop: trajectories join and leave between steps; a failing one takes nobody with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from tests.checkpoints import save_wan

from raydiance.models import registry
from raydiance.models.family import Row
from raydiance.models.spec import Spec
from raydiance.models.wan import Wan
from raydiance.parallel.mesh import Layout, Mesh, Subgroup
from raydiance.parallel.schedule import SCHEDULES
from raydiance.serve.engine.engine import Engine
from raydiance.serve.engine.fleet import Alone
from raydiance.serve.engine.loop import DenoisingLoop
from raydiance.serve.engine.members import Update
from raydiance.serve.engine.orders import Start, Turn, Wish
from raydiance.serve.engine.pack import PackError
from raydiance.serve.engine.planner import Planner
from raydiance.serve.engine.policies.base import Rules
from raydiance.serve.engine.policies.registry import policy
from raydiance.serve.engine.rank import Rank
from raydiance.serve.engine.ways import Costs

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
    made = DenoisingLoop(lambda: Alone(engine), Planner(policy(), Costs(), Rules(max_batch_size=4)))
    yield made
    made.stop()
    assert not made.is_alive


def order(name: str, steps: int = 6, seed: int = 0, guidance_scale: float = 3.0) -> Start:
    spec = Spec("m", "text-to-video", "a red ball", 32, 48, 5, steps, guidance_scale, seed)
    generator = torch.Generator().manual_seed(seed)
    embeddings = [{"prompt_embeds": torch.randn(12, 16, generator=generator)} for _ in range(2)]
    return Start(name, spec, embeddings if guidance_scale > 1 else embeddings[:1])


class Listener:
    def __init__(self, wish: Wish = Wish()) -> None:  # noqa: B008 - it is frozen
        self.updates: list[Update] = []
        self.ended = threading.Event()
        self._wish = wish

    def wish(self, step_index: int) -> Wish:
        return self._wish

    def __call__(self, update: Update) -> None:
        self.updates.append(update)
        if update.error is not None or update.is_done:
            self.ended.set()

    def wait(self) -> torch.Tensor:
        assert self.ended.wait(TIMEOUT_S)
        last = self.updates[-1]
        if last.error is not None:
            raise last.error
        assert last.outcome is not None
        assert last.outcome.result is not None
        return last.outcome.result


def alone(engine: Engine, order: Start) -> torch.Tensor:
    trajectory = engine.start(order.spec, engine.family.conditioning(order.spec, *order.embeddings))
    while not trajectory.is_done:
        [trajectory] = engine.step([trajectory])
    return trajectory.latents


def test_every_step_is_told_and_the_end_is_what_it_is_alone(engine: Engine, loop: DenoisingLoop) -> None:
    listener = Listener()
    loop.join(order("a"), listener)
    result = listener.wait()
    assert [u.step_index for u in listener.updates] == [1, 2, 3, 4, 5, 6]
    assert (result - alone(engine, order("a"))).abs().max() <= 1e-5
    assert loop.num_active == 0


def test_what_is_wished_for_is_told_and_a_checkpoint_goes_on(engine: Engine, loop: DenoisingLoop) -> None:
    listener, resumed = Listener(Wish(preview=True, checkpoint=True)), Listener()
    loop.join(order("a"), listener)
    result = listener.wait()
    told = [u.outcome for u in listener.updates[:-1]]
    assert all(o.preview is not None and o.preview.shape == result.shape for o in told)
    loop.join(replace(order("b"), checkpoint=told[2].checkpoint), resumed)
    assert torch.equal(resumed.wait(), result)
    assert [u.step_index for u in resumed.updates] == [4, 5, 6]
    other = Listener()
    loop.join(replace(order("c", seed=5), checkpoint=told[2].checkpoint), other)
    with pytest.raises(PackError, match="conditioning"):
        other.wait()


def test_what_has_ended_is_held_no_more(engine: Engine, loop: DenoisingLoop) -> None:
    loop.join(order("a"), listener := Listener())
    listener.wait()
    loop.join(order("b"), listener := Listener())
    listener.wait()
    deadline = time.monotonic() + TIMEOUT_S
    while loop.fleet.rank._held and time.monotonic() < deadline:  # type: ignore[attr-defined]
        time.sleep(0.01)
    assert not loop.fleet.rank._held  # type: ignore[attr-defined]


def test_those_who_come_later_share_the_forwards(engine: Engine, loop: DenoisingLoop) -> None:
    first = Listener()
    loop.join(order("first", steps=200), first)
    while len(first.updates) < 3:
        time.sleep(0.001)
    others = [(order(f"other-{i}", steps=5 + i, seed=i, guidance_scale=1.0 + i), Listener()) for i in range(3)]
    for each, listener in others:
        loop.join(each, listener)
    for each, listener in others:
        assert (listener.wait() - alone(engine, each)).abs().max() <= 1e-5
    loop.leave("first", first)
    assert loop.num_rows > loop.num_forwards


def test_leaving_stops_within_one_step(engine: Engine, loop: DenoisingLoop) -> None:
    listener = Listener()
    loop.join(order("a", steps=10_000), listener)
    while not listener.updates:
        time.sleep(0.001)
    loop.leave("a", listener)
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
    loop = DenoisingLoop(lambda: Alone(engine), Planner(policy(), Costs(), Rules(max_batch_size=4)))
    listeners = {seed: Listener() for seed in (1, 2, 13, 4)}
    for seed, listener in listeners.items():
        loop.join(order(str(seed), seed=seed), listener)
    try:
        for seed in (1, 2, 4):
            assert listeners[seed].wait() is not None
        with pytest.raises(type(error)):
            listeners[13].wait()
    finally:
        loop.stop()


@pytest.mark.parametrize(("error", "count"), [(ValueError("poison"), 0), (torch.OutOfMemoryError("too big"), 3)])
def test_memory_is_given_back_before_each_try_that_follows_a_lack_of_it(
    family: Wan, error: Exception, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given_back.append(1))
    rank = Rank(Poisoned(family, error))
    ids = tuple(str(seed) for seed in (1, 2, 13))
    for i in ids:
        rank.begin(order(i, seed=int(i)))
    for batch in (ids, ids, ids, ids[:2]):
        turn = Turn((batch,), Mesh(Subgroup(0, 1), Layout()), SCHEDULES["synchronous"])
        if ids[2] in batch:
            with pytest.raises(type(error)):
                rank.turn(turn)
        else:
            assert rank.turn(turn) is not None
    assert len(given_back) == count


def test_an_id_is_denoised_once(engine: Engine, loop: DenoisingLoop) -> None:
    loop.join(order("a", steps=10_000), listener := Listener())
    with pytest.raises(ValueError, match="already"):
        loop.join(order("a"), Listener())
    loop.leave("a", listener)


def test_one_that_is_paused_stays_where_it_is_until_somebody_joins_for_it(engine: Engine, loop: DenoisingLoop) -> None:
    class Lease(Listener):
        def wish(self, step_index: int) -> Wish:
            return Wish(checkpoint=step_index == 3, pause=step_index == 3)

        def __call__(self, update: Update) -> None:
            super().__call__(update)
            if update.step_index == 3:
                self.ended.set()

    lease, rest, other = Lease(), Listener(), Listener()
    loop.join(order("a"), lease)
    assert lease.ended.wait(TIMEOUT_S)
    loop.join(order("b"), other)
    other.wait()  # others go on meanwhile
    assert [u.step_index for u in lease.updates] == [1, 2, 3]
    begun = loop.fleet.rank._held["a"]  # type: ignore[attr-defined]
    loop.join(replace(order("a"), step=3), rest)
    assert torch.equal(rest.wait(), other.wait())
    assert [u.step_index for u in rest.updates] == [4, 5, 6]
    assert begun.step_index == 3  # it was not begun anew
    loop.leave("a", lease)  # too late: it is another's


def test_one_that_is_paused_elsewhere_goes_on_from_its_checkpoint(engine: Engine, loop: DenoisingLoop) -> None:
    class Lease(Listener):
        def wish(self, step_index: int) -> Wish:
            return Wish(checkpoint=True, pause=step_index == 2)

        def __call__(self, update: Update) -> None:
            super().__call__(update)
            if update.step_index == 2:
                self.ended.set()

    lease, rest = Lease(), Listener()
    loop.join(order("a"), lease)
    assert lease.ended.wait(TIMEOUT_S)
    first = lease.updates[0].outcome
    assert first is not None
    loop.join(replace(order("a"), step=1, checkpoint=first.checkpoint), rest)
    rest.wait()
    assert [u.step_index for u in rest.updates] == [2, 3, 4, 5, 6]


def test_what_a_step_took_is_shared_out_and_what_was_decided_is_told(engine: Engine, loop: DenoisingLoop) -> None:
    listeners = [Listener(), Listener()]
    with loop._changed:
        for i, listener in enumerate(listeners):
            loop.join(order(str(i), steps=4, seed=i), listener)
    for listener in listeners:
        listener.wait()
    last = [listener.updates[-1] for listener in listeners]
    assert all(update.gpu_seconds > 0 for update in last)
    assert sum(update.gpu_seconds for update in last) <= loop.busy_s
    assert all(sum(update.decisions.values()) >= 4 for update in last)
    assert set().union(*(update.decisions for update in last)) <= {"spare", "batched", "others_first"}
