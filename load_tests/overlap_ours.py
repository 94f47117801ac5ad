"""Our own arms: every schedule of a sharded sequence, CFG-parallel, and what the engine chooses by measured costs."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from overlap_arms import Arm, Inputs, Row, Setting, Step, nothing, output_of, register, sequence_bytes
from overlap_layouts import branch_bytes, is_split_in_branches
from overlap_table import CHOSEN, LANES, OVERLAPPED, SHARDED, SYNCHRONOUS

from raydiance.kernels.attention import attention
from raydiance.models import flux_attention, flux_tokens, wan_attention, wan_tokens
from raydiance.models.tokens import Forward
from raydiance.parallel.comm import Communicator
from raydiance.parallel.groups import Groups, open_groups
from raydiance.parallel.mesh import Layout, Mesh, Subgroup
from raydiance.parallel.schedule import SCHEDULES, Schedule
from raydiance.parallel.tokens import ShardedTokens
from raydiance.serve.engine.parts import Part, Wave
from raydiance.serve.engine.planner import Planner
from raydiance.serve.engine.policies.base import Candidate, Rules
from raydiance.serve.engine.policies.registry import policy
from raydiance.serve.engine.ways import Costs, Limits, Shape, Way

DEADLINE_S = 60.0
REPEATS = 3


@functools.cache
def groups() -> Groups:
    """Made once a process, by all ranks at once."""
    return open_groups(DEADLINE_S)


class Sharded:
    """A transformer whose tokens are dealt out over the ranks."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.row = setting, setting.row
        self.model = setting.model()
        self.tokens = ShardedTokens(groups(), setting.rank, attention)
        if self.row.family == "wan":
            self.model.set_attn_processor(wan_attention.Processor(self.tokens))
            wan_tokens.hook(self.model, self.tokens, per_token=False)
        else:
            self.model.set_attn_processor(flux_attention.Processor(self.tokens))
            flux_tokens.hook(self.model, self.tokens)

    def whole_group(self, layout: Layout) -> Mesh:
        return Mesh(Subgroup(0, self.setting.world), layout)

    def step(self, forwards: Sequence[Inputs], mesh: Mesh, schedule: Schedule) -> list[torch.Tensor]:
        """The forwards of one request, or two requests in lanes where the schedule says so."""
        self.tokens.use(mesh, schedule)
        todo = [self.forward(inputs) for inputs in forwards]
        if self.row.forwards == "requests":
            if schedule.lanes:
                return self.tokens.lanes.run([lambda f=f: self.tokens.run([f])[0] for f in todo])
            return [self.tokens.run([f])[0] for f in todo]
        return self.tokens.run(todo)

    def forward(self, inputs: Inputs) -> Forward:
        def call() -> torch.Tensor:
            if self.row.family == "wan":
                self.tokens.begin(video=self.row.num_tokens)
            else:
                text = inputs["encoder_hidden_states"].shape[1]
                self.tokens.begin(text=text, image=self.row.num_tokens - text)
            return output_of(self.model, inputs)

        return Forward(call, tuple(inputs["hidden_states"].shape), torch.float32, torch.device("cpu"))


def scheduled(schedule: Schedule) -> Callable[[Setting], Step]:
    def setup(setting: Setting) -> Step:
        sharded = Sharded(setting)
        mesh = sharded.whole_group(Layout(ulysses=setting.world))
        return lambda forwards: sharded.step(forwards, mesh, schedule)

    return setup


def branches(setting: Setting) -> Step:
    sharded = Sharded(setting)
    mesh = sharded.whole_group(Layout(cfg=setting.world))
    return lambda forwards: sharded.step(forwards, mesh, SCHEDULES["synchronous"])


def compute_alone(setting: Setting) -> Step:
    """The synchronous schedule with nothing sent: what arrives is whatever the buffers hold."""
    sharded = Sharded(setting)
    mesh = sharded.whole_group(Layout(ulysses=setting.world))

    def step(forwards: Sequence[Inputs]) -> list[torch.Tensor]:
        with mock.patch.object(Communicator, "_post", _nothing_sent):
            sharded.step(forwards, mesh, SCHEDULES["synchronous"])
        return []

    return step


def _nothing_sent(_self: Communicator, _what: str, sends: Any, receives: Any) -> Any:
    for (sent, _), (received, _) in zip(sends, receives, strict=True):
        received.view(-1)[: sent.numel()].copy_(sent.view(-1)[: received.numel()])
    return mock.Mock()


class Chosen:
    """What the engine does: costs are measured at warm-up, then what it plans is done in the cheapest ways.

    Args:
    limits: `Limits(cfg=1)` and all ranks for a sequence that has to be sharded.
    smallest: the fewest ranks that one request may have.
    """

    def __init__(self, setting: Setting, limits: Limits, smallest: int) -> None:
        self.sharded, self.setting = Sharded(setting), setting
        row = setting.row
        branches = 2 if row.forwards == "pair" else 1
        requests = 2 if row.forwards == "requests" else 1
        waiting = [Candidate(str(i), i, row.num_tokens, branches, remaining_steps=1) for i in range(requests)]
        self.costs = Costs(limits)
        inputs = row.inputs(0)
        shape = waiting[0].shape
        sizes = [size for size in (setting.world, 1) if size >= smallest]
        for size in sizes:
            for way in limits.ways(size, shape):
                self._measure(shape, way, inputs[:branches])
        if requests == 2:
            for way in limits.ways(setting.world, Shape(row.num_tokens, num_batches=2)):
                self._measure(Shape(row.num_tokens, num_batches=2), way, inputs)
        self.waves: list[Wave] = []
        planner = Planner(policy(), self.costs, Rules(max_batch_size=1))
        while waiting:
            wave, _ = planner.next(0.0, waiting, setting.world)
            self.waves.append([_of(part, waiting) for part in wave])
            stepped = {i for part in wave for batch in part.batches for i in batch}
            waiting = [candidate for i, candidate in enumerate(waiting) if i not in stepped]

    def __call__(self, forwards: Sequence[Inputs]) -> list[torch.Tensor | None]:
        """Of each forward its output; None where another rank has it."""
        found: dict[int, torch.Tensor] = {}
        for wave in self.waves:
            for part in wave:
                if self.setting.rank in part.mesh.subgroup.ranks:
                    found |= self._run(part, forwards)
        return [found.get(i) for i in range(len(forwards))]

    def _run(self, part: Part, forwards: Sequence[Inputs]) -> dict[int, torch.Tensor]:
        mine = [i for batch in part.batches for i in batch]
        if self.setting.row.forwards != "requests":
            return dict(enumerate(self.sharded.step(forwards, part.mesh, part.schedule)))
        outputs = self.sharded.step([forwards[i] for i in mine], part.mesh, part.schedule)
        return dict(zip(mine, outputs, strict=True))

    def _measure(self, shape: Shape, way: Way, inputs: Sequence[Inputs]) -> None:
        mesh = Mesh(Subgroup(0 if way.layout.size > 1 else self.setting.rank, way.layout.size), way.layout)
        self.costs.record(shape, way, measured(lambda: self.sharded.step(inputs, mesh, way.schedule)))


def _of(part: Part, waiting: Sequence[Candidate]) -> Part:
    """With the numbers of the requests, in place of their places among those that waited."""
    return replace(part, batches=tuple(tuple(int(waiting[i].id) for i in batch) for batch in part.batches))


def measured(step: Callable[[], object]) -> float:
    """Seconds of the slowest rank, the least of a few; the same on every rank."""
    found = []
    for _ in range(1 + REPEATS):
        dist.barrier()
        began = time.perf_counter()
        step()
        seconds = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        found.append(seconds.item())
    return min(found[1:])


def has_two(row: Row, _world: int) -> bool:
    return row.forwards != "one"


register(Arm("ours compute alone", "sequence", compute_alone, "compute", wire_bytes=nothing))
_NAMES = {SYNCHRONOUS: "synchronous", "ours projections": "projections", OVERLAPPED: "head_groups"}
for _name, _schedule in _NAMES.items():
    register(Arm(_name, "sequence", scheduled(SCHEDULES[_schedule]), wire_bytes=sequence_bytes, is_ours=True))
for _name in ("halves", "quarters"):
    register(Arm(f"ours {_name}", "sequence", scheduled(SCHEDULES[_name]), wire_bytes=sequence_bytes, is_ours=True))
register(Arm(LANES, "sequence", scheduled(SCHEDULES["lanes"]), takes=has_two, wire_bytes=sequence_bytes, is_ours=True))
register(Arm("ours cfg", "cfg", branches, takes=is_split_in_branches, wire_bytes=branch_bytes, is_ours=True))
register(
    Arm(
        SHARDED,
        "sequence",
        lambda setting: Chosen(setting, Limits(cfg=1, ring=1), setting.world),
        is_ours=True,
        per_rate=True,
    )
)
register(Arm(CHOSEN, "any", lambda setting: Chosen(setting, Limits(), 1), is_ours=True, per_rate=True))
