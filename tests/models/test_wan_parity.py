"""Wan with two experts, frames as channels, or VACE, against diffusers: same checkpoint and seed, same numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch
from diffusers import DiffusionPipeline
from tests.checkpoints import BOTH, save_i2v_2_1, save_i2v_a14b, save_t2v_a14b, save_vace, save_wan
from tests.families.kit import Case, Model, clip, picture
from tests.families.wan import FLF2V_2_1, I2V_2_1, I2V_A14B, T2V_A14B, VACE, VACE_2_2
from tests.families.wan_diffusers import pipeline_of, pixels, reference

from raydiance.models import registry
from raydiance.models.inputs import Inputs
from raydiance.models.options import LoadOptions

BOUND = 1e-5
MATTERS = 100 * BOUND
TWO = {
    (name, scheduler): Model(f"parity-{name}-{scheduler}", partial(save, scheduler=scheduler), ())
    for name, save in {
        "t2v": save_t2v_a14b,
        "i2v": save_i2v_a14b,
        "vace": save_vace,
        "vace-2-2": partial(save_vace, experts=BOTH),
        "i2v-2-1": save_i2v_2_1,
        "flf2v-2-1": partial(save_i2v_2_1, embedded_frames=2),
    }.items()
    for scheduler in ("unipc", "euler")
}
CASES = {
    "t2v": T2V_A14B,
    "i2v": I2V_A14B,
    "vace": VACE,
    "vace-2-2": VACE_2_2,
    "i2v-2-1": I2V_2_1,
    "flf2v-2-1": FLF2V_2_1,
}


def resized(case: Case, height: int, width: int, num_frames: int, **values: object) -> Case:
    """The same request at another size; pictures are made anew."""
    num_frames = num_frames if case.spec.is_video else 1
    spec = replace(case.spec, height=height, width=width, num_frames=num_frames, **values)
    if case.inputs is None:
        return replace(case, spec=spec)
    images = {
        role: found if role == "reference" else [picture(width, height, seed) for seed, _ in enumerate(found)]
        for role, found in case.inputs.images.items()
    }
    video, mask = case.inputs.video, case.inputs.mask
    if video is not None:
        video = clip(width, height, num_frames)
    if mask is not None:  # one for all frames
        mask = video[:1, :, :, 0] // 128 * 255
    return replace(case, spec=spec, inputs=Inputs(images, video, mask))


def without_references(case: Case, latents: torch.Tensor) -> torch.Tensor:
    """diffusers' latents hold them to the end."""
    return latents[:, -((case.spec.num_frames - 1) // 4 + 1) :]


def check(model: Model, case: Case) -> None:
    ours, theirs = model.studio.latents(case), without_references(case, reference(model, case))
    assert ours.shape == theirs.shape
    assert theirs.std() > 0.1
    assert (ours - theirs).abs().max() <= BOUND


def named(*kinds: str) -> list[object]:
    return [pytest.param(kind, case, id=f"{kind}-{case.id}") for kind in kinds for case in CASES[kind]]


@pytest.mark.parametrize(("kind", "case"), named(*CASES))
@pytest.mark.parametrize("scheduler", ["unipc", "euler"])
def test_latents_and_pixels_are_those_of_diffusers(kind, case, scheduler):
    model = TWO[kind, scheduler]
    check(model, case)
    theirs = torch.as_tensor(reference(model, case, output_type="pt"))
    ours = pixels(model, model.studio.latents(case))
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= BOUND


@pytest.mark.parametrize(("kind", "case"), named(*CASES))
def test_so_they_are_without_guidance_at_an_odd_size(kind, case):
    check(TWO[kind, "unipc"], resized(case, 16, 80, 5, guidance_scale=1.0, num_inference_steps=9))


@pytest.mark.parametrize(("kind", "case"), named(*CASES))
def test_so_they_are_for_longer_videos_in_many_steps(kind, case):
    check(TWO[kind, "unipc"], resized(case, 48, 32, 9, guidance_scale=5.0, num_inference_steps=30, seed=2**63 - 1))


@pytest.mark.parametrize("kind", ["t2v", "i2v", "vace-2-2"])
@pytest.mark.parametrize("scheduler", ["unipc", "euler"])
def test_both_experts_run_as_often_as_in_diffusers(kind, scheduler):
    model, case, calls = TWO[kind, scheduler], CASES[kind][0], Counter()
    hooks = [
        getattr(pipeline, name).register_forward_hook(lambda *_, who=who, name=name: calls.update([(who, name)]))
        for who, pipeline in (("ours", model.studio.denoiser.pipeline), ("theirs", pipeline_of(model.folder)))
        for name in BOTH
    ]
    try:
        check(model, case)
    finally:
        for hook in hooks:
            hook.remove()
    assert calls == {(who, name): 4 for who in ("ours", "theirs") for name in BOTH}  # 2 steps, 2 branches


@pytest.mark.parametrize(
    ("only", "boundary_ratio"), [("transformer", None), ("transformer", 0.0), ("transformer_2", 1.0)]
)
def test_one_of_two_experts_is_enough_where_the_boundary_says_so(only, boundary_ratio):
    save = partial(save_wan, expand_timesteps=False, experts=(only,), boundary_ratio=boundary_ratio)
    model, case = Model(f"parity-{only}-{boundary_ratio}", save, ()), T2V_A14B[0]
    check(model, replace(case, spec=replace(case.spec, extra={})))


@pytest.mark.parametrize("kind", ["t2v", "i2v", "vace-2-2"])
def test_both_scales_of_guidance_count(kind):
    model, case = TWO[kind, "unipc"], CASES[kind][0]
    base = model.studio.latents(case)
    for changed in (
        replace(case.spec, guidance_scale=6.0),
        replace(case.spec, extra={**case.spec.extra, "guidance_scale_2": 6.0}),
    ):
        other = replace(case, spec=changed)
        assert (model.studio.latents(other) - base).abs().max() > MATTERS
        check(model, other)


@pytest.mark.parametrize(("kind", "case"), named("vace", "i2v", "i2v-2-1", "flf2v-2-1"))
def test_what_is_given_matters(kind, case):
    """Parity would be empty on a model that ignores its inputs."""
    model = TWO[kind, "unipc"]
    base = model.studio.latents(case)
    changed = [replace(case, spec=replace(case.spec, **other)) for other in ({"prompt": "blue"}, {"seed": 8})]
    if kind == "vace":
        changed.append(replace(case, spec=replace(case.spec, extra={"conditioning_scale": 1.5})))
        check(model, changed[-1])
    inputs = case.inputs
    for role, found in inputs.images.items():
        turned = [image.transpose(0) for image in found]
        changed.append(replace(case, inputs=replace(inputs, images={**inputs.images, role: turned})))
    if inputs.video is not None:
        changed.append(replace(case, inputs=replace(inputs, video=inputs.video[::-1].copy())))
    if inputs.mask is not None:
        changed.append(replace(case, inputs=replace(inputs, mask=255 - inputs.mask)))
    for other in changed:
        assert (model.studio.latents(other) - base).abs().max() > MATTERS


@pytest.mark.parametrize("kind", ["t2v", "i2v", "vace-2-2", "flf2v-2-1"])
def test_bfloat16_stays_near_diffusers_in_bfloat16(kind):
    model, case = TWO[kind, "unipc"], CASES[kind][0]
    denoiser = registry.load(model.folder, "denoise", "wan", LoadOptions(dtype="bfloat16"))
    experts = {name: getattr(denoiser.pipeline, name) for name in denoiser.config.experts}
    pipe = DiffusionPipeline.from_pretrained(model.folder, **experts)
    pipe.set_progress_bar_config(disable=True)
    ours = replace(model.studio, denoiser=denoiser).latents(case)
    theirs = without_references(case, reference(model, case, pipe=pipe))
    assert ours.dtype == torch.float32
    assert (ours - theirs).abs().max() <= 5e-2  # diffusers' scheduler multiplies in bfloat16, ours in fp32
    assert 1e-5 < (ours - model.studio.latents(case)).abs().max() <= 0.2
