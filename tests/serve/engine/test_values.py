"""What follows from a denoising state being a value: look at it, move it, copy it, send it back."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from tests.studio import RANDOM, TRAINED, make_spec, studio_of

from raydiance.serve.engine.pack import pack, unpack
from raydiance.serve.engine.trajectory import Fixed

LATENTS = 1e-5
CONTINUE = """
import sys, torch
from pathlib import Path
from raydiance.models import registry
from raydiance.serve.engine.engine import Engine
from raydiance.serve.engine.pack import pack, unpack
torch.set_num_threads(1)
engine = Engine(registry.load(Path(sys.argv[1]), "denoise", "wan"))
for path in Path(sys.argv[2]).glob("*.packed"):
    trajectory = unpack(path.read_bytes())
    while not trajectory.is_done:
        [trajectory] = engine.step([trajectory])
    path.with_suffix(".done").write_bytes(pack(trajectory))
"""


@pytest.mark.parametrize("name", [*RANDOM, TRAINED])
def test_it_goes_on_in_another_process(name, tmp_path):
    studio = studio_of(name)
    specs = {
        "t2v": make_spec(num_inference_steps=4),
        "i2v": make_spec("image-to-video", num_inference_steps=12, guidance_scale=5.0),
        "i2i": make_spec("image-to-image", num_inference_steps=6, strength=0.7, guidance_scale=1.0),
    }
    expected = {}
    for label, spec in specs.items():
        trajectory = studio.start(spec)
        for step in range(spec.first_step, spec.num_inference_steps):
            trajectory = studio.run(trajectory, to=step)
            if step % (5 if label == "i2v" else 1) == 0:
                (tmp_path / f"{label}-{step}.packed").write_bytes(pack(trajectory))
        expected[label] = studio.engine().finish(studio.run(trajectory))
    arguments = [sys.executable, "-c", CONTINUE, str(studio.folder), str(tmp_path)]
    subprocess.run(arguments, check=True, capture_output=True, text=True)
    done = sorted(tmp_path.glob("*.done"))
    assert len(done) == len(list(tmp_path.glob("*.packed"))) == 4 + 3 + 4
    for path in done:
        latents = studio.engine().finish(unpack(path.read_bytes()))
        assert (latents - expected[path.stem.split("-")[0]]).abs().max() <= LATENTS, path.stem


@pytest.mark.parametrize("name", [*RANDOM, TRAINED])
@pytest.mark.parametrize("task", ["text-to-video", "image-to-video"])
def test_previews_come_ever_closer_to_the_result(name, task):
    studio, spec = studio_of(name), make_spec(task, num_inference_steps=20)
    engine, trajectory, previews = studio.engine(), studio.start(spec), []
    while not trajectory.is_done:
        [trajectory] = engine.step([trajectory])
        previews.append(studio.pixels(engine.preview(trajectory)))
    result = studio.pixels(engine.finish(trajectory))
    assert all(preview.isfinite().all() for preview in previews)
    errors = [(preview - result).square().mean().item() for preview in previews]
    assert errors[14] > errors[18] > errors[19] == 0.0
    if name == "trained":  # random weights have nothing to find on the way
        assert errors[0] > errors[9] > errors[14]
    if task == "image-to-video":
        assert all((preview[:, :, 0] - result[:, :, 0]).abs().max() <= LATENTS for preview in previews)


def test_a_preview_before_the_first_step_costs_a_forward():
    studio, engine = studio_of("unipc"), studio_of("unipc").engine()
    start = studio.start(make_spec())
    preview = engine.preview(start)
    assert engine.num_forwards == 1
    assert torch.equal(preview, engine.preview(engine.step([start])[0]))
    assert engine.num_forwards == 2


def test_progress_is_of_what_is_run():
    studio = studio_of("unipc")
    start = studio.start(make_spec("image-to-image", num_inference_steps=10, strength=0.4))
    assert (start.step_index, start.num_steps, start.remaining, start.progress) == (6, 10, 4, 0.0)
    assert studio.run(start, to=9).progress == pytest.approx(0.75)
    done = studio.run(start)
    assert (done.progress, done.remaining, done.is_done) == (1.0, 0, True)
    assert studio.engine().rewind(done, 3).progress == 0.0


@pytest.mark.parametrize("name", RANDOM)
def test_a_copy_goes_the_same_way(name):
    studio = studio_of(name)
    middle = studio.run(studio.start(make_spec(num_inference_steps=6)), to=3)
    copy = studio.engine().branch(middle, seed=99)
    assert copy.spec == replace(middle.spec, seed=99)
    assert copy.fixed.conditioning_id == middle.fixed.conditioning_id
    assert copy.fixed.id != middle.fixed.id
    assert torch.equal(studio.run(copy).latents, studio.run(middle).latents)


@pytest.mark.parametrize("name", [*RANDOM, TRAINED])
def test_siblings_spread(name):
    studio, engine = studio_of(name), studio_of(name).engine()
    middle = studio.run(studio.start(make_spec(num_inference_steps=8)), to=2)
    original = studio.run(middle).latents

    def sibling(seed, spread):
        return studio.run(engine.branch(middle, seed, spread)).latents

    assert torch.equal(sibling(1, 0.5), sibling(1, 0.5))
    assert (sibling(1, 0.5) - sibling(2, 0.5)).abs().max() > 1e-2
    distances = [(sibling(1, spread) - original).square().mean() for spread in (0.1, 0.4, 1.0)]
    assert distances == sorted(distances)
    assert distances[0] > 1e-6
    if name in RANDOM:  # as far as another start; a corrector that still had its history would undo the spread
        assert distances[-1] > 0.5


@pytest.mark.parametrize("name", RANDOM)
def test_spreading_keeps_the_noise_level_and_the_estimate(name):
    studio, engine = studio_of(name), studio_of(name).engine()
    spec = make_spec(height=128, width=128, num_inference_steps=8)
    middle = studio.run(studio.start(spec), to=3)
    solver = studio.denoiser.new_solver(spec)
    before = solver.implied_noise(middle.latents, middle.denoised, 3)
    for spread in (0.3, 1.0):
        branch = engine.branch(middle, 5, spread)
        after = solver.implied_noise(branch.latents, branch.denoised, 3)
        assert torch.equal(branch.denoised, middle.denoised)
        expected_std = ((1 - spread**2) * before.var() + spread**2).sqrt()
        assert after.std() == pytest.approx(expected_std.item(), rel=0.06)
        correlation = torch.corrcoef(torch.stack([before.flatten(), after.flatten()]))[0, 1]
        expected_correlation = (1 - spread**2) ** 0.5 * before.std() / expected_std
        assert correlation == pytest.approx(expected_correlation.item(), abs=0.06)


@pytest.mark.parametrize("name", RANDOM)
def test_a_full_spread_at_the_start_is_a_start_with_the_other_seed(name):
    studio = studio_of(name)
    branch = studio.engine().branch(studio.start(make_spec(seed=1)), seed=2, spread=1.0)
    assert (branch.latents - studio.start(make_spec(seed=2)).latents).abs().max() <= 1e-4


def test_what_cannot_be_branched_is_refused():
    studio, engine = studio_of("unipc"), studio_of("unipc").engine()
    start = studio.start(make_spec())
    for spread in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="spread="):
            engine.branch(start, 1, spread)
    with pytest.raises(ValueError, match="rewind it first"):
        engine.branch(studio.run(start), 1, 0.5)


@pytest.mark.parametrize("name", [*RANDOM, TRAINED])
def test_rewinding_less_changes_less(name):
    studio, engine = studio_of(name), studio_of(name).engine()
    done = studio.run(studio.start(make_spec(num_inference_steps=20)))
    latents = [studio.run(engine.rewind(done, step, seed=3)).latents for step in (19, 14, 0)]
    distances = [(other - done.latents).square().mean() for other in latents]
    assert distances == sorted(distances)
    assert distances[0] > 0


@pytest.mark.parametrize("name", [*RANDOM, TRAINED])
def test_rewinding_to_the_start_with_another_prompt_is_that_prompt(name):
    studio, engine = studio_of(name), studio_of(name).engine()
    other = make_spec(prompt="the blue square", seed=5)
    done = studio.run(studio.start(make_spec(seed=1)))
    rewound = engine.rewind(done, 0, studio.conditioning(other), seed=5, spec=other)
    assert rewound.spec == other
    assert (studio.run(rewound).latents - studio.latents(other)).abs().max() <= 1e-3


@pytest.mark.parametrize("name", RANDOM)
def test_rewound_noise_has_the_level_of_the_step(name):
    studio, engine = studio_of(name), studio_of(name).engine()
    spec = make_spec(height=128, width=128, num_inference_steps=6)
    middle = studio.run(studio.start(spec), to=4)
    rewound, again = engine.rewind(middle, 2), engine.rewind(middle, 2)
    noise = studio.denoiser.new_solver(spec).implied_noise(rewound.latents, middle.denoised, 2)
    assert noise.std() == pytest.approx(1.0, abs=0.06)
    assert torch.equal(rewound.latents, again.latents)
    assert rewound.spec == spec
    assert not torch.equal(rewound.latents, engine.rewind(middle, 2, seed=1).latents)
    # a second time, the generator has moved on
    assert not torch.equal(engine.rewind(studio.run(rewound, to=3), 2).latents, rewound.latents)


@pytest.mark.parametrize(
    ("step_index", "changed", "message"),
    [
        (-1, {}, "step_index=-1"),
        (3, {}, "step_index=3 is not before"),
        (1, {"height": 48}, "height=48 differs"),
        (1, {"num_inference_steps": 9}, "num_inference_steps=9 differs"),
        (1, {"task": "text-to-image"}, "task=text-to-image differs"),
    ],
)
def test_what_cannot_be_rewound_is_refused(step_index, changed, message):
    studio = studio_of("unipc")
    middle = studio.run(studio.start(make_spec()), to=3)
    with pytest.raises(ValueError, match=message):
        studio.engine().rewind(middle, step_index, spec=replace(middle.spec, **changed))


def test_a_moved_value_keeps_its_ids():
    start = studio_of("unipc").start(make_spec())
    ids = start.fixed.id, start.fixed.conditioning_id
    moved = start.to(torch.device("meta"))  # a device without bytes to hash
    assert moved.latents.device.type == moved.fixed.conditioning["prompt_embeds"].device.type == "meta"
    assert moved.generator_state.device.type == "cpu"
    assert (moved.fixed.id, moved.fixed.conditioning_id) == ids
    assert start.to(torch.device("cpu")).fixed is start.fixed


def test_ids_are_of_the_content():
    conditioning = studio_of("unipc").conditioning(make_spec())
    fixed = Fixed(make_spec(), conditioning)
    again = Fixed(make_spec(), {k: v.clone() for k, v in reversed(conditioning.items())})
    assert (fixed.id, fixed.conditioning_id) == (again.id, again.conditioning_id)
    other = Fixed(make_spec(), {**conditioning, "prompt_embeds": conditioning["prompt_embeds"] + 1})
    assert other.conditioning_id != fixed.conditioning_id
    assert Fixed(make_spec(seed=8), conditioning).conditioning_id == fixed.conditioning_id
