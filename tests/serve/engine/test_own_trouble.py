"""Faults that were found by reading: one request's trouble stays its own, whatever the order of events."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from tests.checkpoints import save_wan
from tests.serve.engine.test_loop import Listener, order

from raydiance.models import registry, resolve
from raydiance.models.family import Row
from raydiance.models.wan import Wan
from raydiance.parallel.mesh import Layout
from raydiance.parallel.schedule import SCHEDULES
from raydiance.serve.engine.engine import Engine
from raydiance.serve.engine.fleet import Alone
from raydiance.serve.engine.loop import DenoisingLoop
from raydiance.serve.engine.members import Update
from raydiance.serve.engine.orders import Wish
from raydiance.serve.engine.planner import Planner
from raydiance.serve.engine.policies.base import Rules
from raydiance.serve.engine.policies.registry import policy
from raydiance.serve.engine.trajectory import Trajectory
from raydiance.serve.engine.ways import Costs, Limits, Shape, Way
from raydiance.serve.layout_check import limits_of
from raydiance.serve.parallel_config import ParallelConfig

SYNC = SCHEDULES["synchronous"]


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Wan:
    torch.set_num_threads(1)
    return registry.load(save_wan(tmp_path_factory.mktemp("wan")), "denoise", "m")  # type: ignore[return-value]


@contextmanager
def looping(engine: Engine, costs: Costs | None = None) -> Iterator[DenoisingLoop]:
    planner = Planner(policy(), costs or Costs(), Rules(max_batch_size=4, max_batch_tokens=100_000))
    loop = DenoisingLoop(lambda: Alone(engine), planner)
    try:
        yield loop
        assert loop.is_alive
    finally:
        loop.stop()


class Unfinished(Engine):
    """What is made of seed 13's result does not fit."""

    def finish(self, trajectory: Trajectory) -> torch.Tensor:
        if trajectory.spec.seed == 13:
            raise torch.OutOfMemoryError("too big")
        return super().finish(trajectory)


def test_a_result_that_fails_leaves_its_neighbours_where_they_were(family: Wan) -> None:
    with looping(Unfinished(family)) as loop:
        listeners = {seed: Listener() for seed in (1, 13)}
        with loop._changed:  # both from the first step on
            for seed, listener in listeners.items():
                loop.join(order(str(seed), steps=3, seed=seed), listener)
        listeners[1].wait()
        with pytest.raises(torch.OutOfMemoryError):
            listeners[13].wait()
        assert [u.step_index for u in listeners[1].updates] == [1, 2, 3]


class Elsewhere(torch.Tensor):
    """Stands for one on a GPU."""

    def cpu(self) -> torch.Tensor:  # type: ignore[override]
        return self.as_subclass(torch.Tensor)


class OnGPU(Engine):
    def finish(self, trajectory: Trajectory) -> torch.Tensor:
        return super().finish(trajectory).as_subclass(Elsewhere)

    def preview(self, trajectory: Trajectory) -> torch.Tensor:
        return super().preview(trajectory).as_subclass(Elsewhere)


def test_latents_leave_a_rank_by_way_of_the_host(family: Wan) -> None:
    """Whoever gets them, such as a coordinator without a GPU, could not read them else."""
    with looping(OnGPU(family)) as loop:
        loop.join(order("a", steps=2), listener := Listener(Wish(preview=True)))
        assert type(listener.wait()) is torch.Tensor
        outcome = listener.updates[0].outcome
        assert outcome is not None
        assert type(outcome.preview) is torch.Tensor


def test_a_request_without_a_way_fails_alone(family: Wan) -> None:
    unguided_only = Costs(Limits(cfg=2))  # guided steps need two ranks, and there is one
    with looping(Engine(family), unguided_only) as loop:
        loop.join(order("guided"), refused := Listener())
        loop.join(order("plain", guidance_scale=1.0), served := Listener())
        with pytest.raises(ValueError, match="no layout of 1 ranks"):
            refused.wait()
        served.wait()


class Again(Listener):
    """Joins once more, under the same id, when it is told of the end; and then leaves, late."""

    def __init__(self, loop: DenoisingLoop, next_listener: Listener) -> None:
        super().__init__()
        self.loop, self.next = loop, next_listener

    def __call__(self, update: Update) -> None:
        super().__call__(update)
        if update.is_done:
            self.loop.join(order("a", steps=3), self.next)
            self.loop.leave("a", self)


def test_who_leaves_late_takes_nobody_of_the_same_id_along(family: Wan) -> None:
    with looping(Engine(family)) as loop:
        loop.join(order("a", steps=2), Again(loop, following := Listener()))
        following.wait()


class Slow(Engine):
    """Says when it steps, and waits to be let go."""

    def __init__(self, family: Wan) -> None:
        super().__init__(family)
        self.stepping, self.go = threading.Event(), threading.Event()

    def _predict(self, rows: Sequence[Row]) -> list[torch.Tensor]:  # type: ignore[override]
        self.stepping.set()
        assert self.go.wait(30)
        return super()._predict(rows)  # type: ignore[arg-type]


def test_an_id_that_is_used_again_in_mid_step_is_the_new_one_s(family: Wan) -> None:
    engine = Slow(family)
    with looping(engine) as loop:
        loop.join(order("a", steps=1), old := Listener())
        assert engine.stepping.wait(30)
        loop.leave("a", old)
        loop.join(order("a", steps=2), new := Listener())
        engine.go.set()  # the old one ends
        new.wait()
        assert [u.step_index for u in new.updates] == [1, 2]


class Greedy(Engine):
    """Two at once do not fit; what was computed for them must not be there when one is tried."""

    def __init__(self, family: Wan) -> None:
        super().__init__(family)
        self.activations: weakref.ref[torch.Tensor] | None = None
        self.held: list[bool] = []

    def _predict(self, rows: Sequence[Row]) -> list[torch.Tensor]:  # type: ignore[override]
        if len(rows) > 1:
            activations = torch.zeros(1000)
            self.activations = weakref.ref(activations)
            raise torch.OutOfMemoryError("too big")
        if self.activations is not None:
            self.held.append(self.activations() is not None)
        return super()._predict(rows)  # type: ignore[arg-type]


def test_what_a_failed_batch_had_computed_is_given_back_before_its_halves_are_tried(family: Wan) -> None:
    engine = Greedy(family)
    with looping(engine) as loop:
        listeners = [Listener(), Listener()]
        with loop._changed:
            for i, listener in enumerate(listeners):
                loop.join(order(str(i), steps=2), listener)
        for listener in listeners:
            listener.wait()
    assert engine.held
    assert not any(engine.held)


def test_one_step_that_was_held_up_does_not_decide_for_ever() -> None:
    costs, shape = Costs(), Shape(1000)
    better, other = Way(Layout(ulysses=2), SYNC), Way(Layout(ring=2), SYNC)
    for way, seconds in ((better, 1.0), (better, 1.0), (other, 1.2), (better, 10.0)):
        costs.record(shape, way, seconds)
    assert costs.best(2, shape) == (better, 1.0)
    for _ in range(5):  # now it is slower
        costs.record(shape, better, 2.0)
    assert costs.best(2, shape) == (other, 1.2)


def test_costs_are_read_while_they_change() -> None:
    costs, errors, stop = Costs(), [], threading.Event()
    layouts = [Layout(c, r, u) for c in (1, 2) for r in (1, 2, 4, 8, 16, 32, 64) for u in (1, 2, 4, 8, 16, 32, 64)]

    def read() -> None:
        while not stop.is_set():
            try:
                costs.table()
            except RuntimeError as error:
                errors.append(error)
                return

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    reader = threading.Thread(target=read)
    reader.start()
    try:
        for tokens in range(1, 40):
            for layout in layouts:
                costs.record(Shape(tokens), Way(layout, SYNC), 1.0)
    finally:
        stop.set()
        reader.join()
        sys.setswitchinterval(interval)
    assert not errors


def test_a_forced_schedule_is_that_of_two_batches_too() -> None:
    pair = Shape(1000, num_batches=2)
    assert Limits(schedule="lanes").ways(2, pair)
    assert not Limits(schedule="synchronous").ways(2, pair)


def test_two_batches_are_in_no_lanes_where_each_may_need_weights_that_displace_the_other_s() -> None:
    assert not Limits(pairs=False).ways(2, Shape(1000, num_batches=2))
    assert any(way.schedule.lanes for way in Limits(pairs=False).ways(2, Shape(1000, num_branches=2)))
    card = registry.card(resolve.resolve("tiny"), "tiny")
    for offload, pairs in (("none", True), ("group", True), ("idle_expert", False)):
        assert limits_of(ParallelConfig(gpus=2), card, offload).pairs is pairs
