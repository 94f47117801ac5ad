"""What holds for every family and task: batches, packing, cancelling, previews. See `tests/families/kit.py`."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from tests.families.kit import Case, Model, all_models, variants

from raydiance.models.family import Family
from raydiance.serve.engine.fleet import Alone
from raydiance.serve.engine.loop import DenoisingLoop
from raydiance.serve.engine.members import Update
from raydiance.serve.engine.orders import Wish
from raydiance.serve.engine.pack import pack, unpack
from raydiance.serve.engine.planner import Planner
from raydiance.serve.engine.policies.base import Rules
from raydiance.serve.engine.policies.registry import policy
from raydiance.serve.engine.ways import Costs

BATCH = 1e-4
MODELS = all_models()
CASES = [pytest.param(m, c, id=f"{m.name}-{c.id}") for m in MODELS for c in m.cases]
RESUME = """
import json, sys
from pathlib import Path
from raydiance.models import registry
from raydiance.models.options import LoadOptions
from raydiance.serve.engine.engine import Engine
from raydiance.serve.engine.pack import pack, unpack
import torch
torch.set_num_threads(1)
for name, folder, components, files in json.loads(Path(sys.argv[1]).read_text()):
    engine = Engine(registry.load(Path(folder), "denoise", name, LoadOptions(components=components)))
    for file in files:
        trajectory = unpack(Path(file).read_bytes())
        while not trajectory.is_done:
            [trajectory] = engine.step([trajectory])
        Path(file).write_bytes(pack(trajectory))
"""


def first_of_each_task(model: Model) -> list[Case]:
    return list({case.spec.task: case for case in reversed(model.cases)}.values())


@pytest.mark.parametrize(
    "family", sorted({type(m.studio.denoiser) for m in MODELS}, key=lambda f: f.__name__), ids=lambda f: f.__name__
)
def test_no_method_is_left_to_the_protocol(family):
    """Most of its bodies do nothing, and no type checker tells."""
    optional = {"num_tokens", "decode_audio", "conditioning", "set_attention", "run"}
    methods = {name for name, value in vars(Family).items() if inspect.isfunction(value) and name[0] != "_"} - optional
    assert len(methods) == 9
    for name in methods:
        assert getattr(family, name) is not getattr(Family, name), name


@pytest.mark.parametrize(("model", "case"), CASES)
def test_a_batch_of_three_gives_each_what_it_gets_alone(model, case):
    studio, cases = model.studio, variants(case, model.studio.denoiser.card)
    together, engine = [studio.start(c) for c in cases], studio.engine()
    assert len({engine.plan_item(t).key for t in together}) == 1
    steps = 0
    while any(not t.is_done for t in together):
        going = [i for i, t in enumerate(together) if not t.is_done]
        for i, stepped in zip(going, engine.step([together[i] for i in going]), strict=True):
            together[i] = stepped
        steps += 1
    assert engine.num_forwards == steps < engine.num_rows  # they did share forwards
    for c, trajectory in zip(cases, together, strict=True):
        assert (engine.finish(trajectory) - studio.latents(c)).abs().max() <= BATCH, c.id


@pytest.mark.parametrize(("model", "case"), CASES)
def test_the_preview_of_the_last_step_is_the_result(model, case):
    studio, engine = model.studio, model.studio.engine()
    trajectory = studio.start(case)
    early = engine.preview(trajectory)
    done = studio.run(trajectory)
    assert torch.equal(engine.preview(done), engine.finish(done))
    assert early.shape == engine.finish(done).shape
    assert not torch.equal(early, engine.finish(done))


@pytest.mark.parametrize("model", MODELS, ids=[m.name for m in MODELS])
def test_a_cancelled_one_stops_within_a_step(model):
    studio, case = model.studio, model.cases[0]
    loop = DenoisingLoop(
        lambda: Alone(studio.engine()), Planner(policy(), Costs(), Rules(max_batch_size=8, max_batch_tokens=1 << 20))
    )
    first, go_on, seen = threading.Event(), threading.Event(), []

    class Listener:
        def wish(self, step_index: int) -> Wish:
            return Wish()

        def __call__(self, update: Update) -> None:
            seen.append(update)
            first.set()
            go_on.wait(30)

    try:
        loop.join(studio.order(case, "one"), listener := Listener())
        assert first.wait(60)
        loop.leave("one", listener)
        go_on.set()
    finally:
        loop.stop()
    assert [u.error for u in seen] == [None]
    assert loop.num_steps == 1


def test_what_is_packed_and_goes_on_in_another_process_ends_the_same(tmp_path: Path):
    """One process for all, since each takes seconds to import torch."""
    work, expected = [], {}
    for model in MODELS:
        files = []
        for case in first_of_each_task(model):
            trajectory = model.studio.run(model.studio.start(case), to=case.spec.first_step + 1)
            file = tmp_path / f"{model.name}-{case.spec.task}"
            file.write_bytes(pack(trajectory))
            files.append(str(file))
            expected[file] = model.studio.run(trajectory)
        work.append((model.name, str(model.folder), dict(model.options.components), files))
    listed = tmp_path / "work.json"
    listed.write_text(json.dumps(work))
    done = subprocess.run([sys.executable, "-c", RESUME, listed], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for file, trajectory in expected.items():
        resumed = unpack(file.read_bytes())
        # not to the last bit: on some CPUs the order of sums follows how memory is aligned, by process
        assert (resumed.latents - trajectory.latents).abs().max() <= 1e-6 * trajectory.latents.abs().max(), file.name
        assert torch.equal(resumed.generator_state, trajectory.generator_state), file.name
