"""The FLUX family against diffusers' own pipelines: same checkpoint, same seed, same latents, same pixels."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from diffusers import FluxImg2ImgPipeline, FluxKontextPipeline, FluxPipeline
from tests.families.flux import DYNAMIC
from tests.families.flux_diffusers import CASES, MODEL, model_of, pipeline_of, reference
from tests.families.kit import Case, Model, Studio

from raydiance.models import registry
from raydiance.models.inputs import Inputs
from raydiance.models.options import LoadOptions

PARITY = 1e-5


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_latents_and_pixels_are_those_of_diffusers(case):
    assert diffusers.__version__.startswith("0.42")
    studio = model_of(case).studio
    ours, theirs = studio.latents(case), reference(case)
    assert ours.shape == theirs.shape
    assert theirs.std() > 0.1
    assert (ours - theirs).abs().max() <= PARITY
    frames, pixels = studio.frames(case, ours), reference(case, "np")
    assert frames.shape == (1, case.spec.height, case.spec.width, 3)
    assert pixels.std() > 0.01
    floats = studio.decoder.pipeline.vae.dtype
    assert np.abs(decoded(studio, case, ours.to(floats)) - pixels).max() <= PARITY
    rounded = (pixels * 255).round().astype(np.uint8)
    assert np.abs(frames[0].astype(int) - rounded.astype(int)).max() <= 1  # a value next to .5 may round the other way
    assert (frames[0] != rounded).mean() < 1e-3


def decoded(studio: Studio, case: Case, latents: torch.Tensor) -> np.ndarray:
    """What the decoder has before it rounds to 8 bits, in [0, 1], [H, W, 3]."""
    kept, processor = [], studio.decoder.pipeline.image_processor
    original = processor.postprocess
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processor, "postprocess", lambda *a, **k: kept.append(original(*a, **k)) or kept[-1])
        list(studio.decoder.decode(latents, case.spec))
    return kept[0][0]


@pytest.mark.parametrize("name", ["dev-true-cfg", "schnell-true-cfg", "image", "edit"])
def test_what_is_asked_for_matters(name):
    """Parity would be empty on a model that ignores its inputs."""
    case = replace(CASES[name], spec=replace(CASES[name].spec, extra={"true_cfg_scale": 4.0}))
    studio = model_of(case).studio
    base = studio.latents(case)
    changes: list[dict[str, Any]] = [{"prompt": "a blue square"}, {"negative_prompt": "left"}, {"seed": 8}]
    changes += [{"num_inference_steps": 5}, {"extra": {"true_cfg_scale": 1.0}}]
    if studio.denoiser.card.has_guidance:
        changes.append({"guidance_scale": 9.0})
    if case.spec.task == "image-to-image":
        changes.append({"strength": 0.9})
    for change in changes:
        other = replace(case, spec=replace(case.spec, **change))
        assert (studio.latents(other) - base).abs().max() > 1e-3, change
    if case.inputs is not None:
        [(role, [picture])] = case.inputs.images.items()
        turned = Inputs({role: [picture.rotate(180)]})
        assert (studio.latents(replace(case, inputs=turned)) - base).abs().max() > 1e-3


def test_guidance_changes_nothing_where_it_was_distilled_away():
    case, studio = CASES["schnell"], MODEL["schnell"].studio
    other = replace(case, spec=replace(case.spec, guidance_scale=9.0))
    assert torch.equal(studio.latents(other), studio.latents(case))


@pytest.fixture
def unipc(tmp_path: Path) -> Iterator[Model]:
    """FLUX with a scheduler that makes its own sigmas."""
    folder = Path(shutil.copytree(MODEL["dev"].folder, tmp_path / "flux"))
    scheduler = diffusers.UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, use_dynamic_shifting=True
    )
    scheduler.save_pretrained(folder / "scheduler")
    index = (folder / "model_index.json").read_text()
    (folder / "model_index.json").write_text(index.replace(type(DYNAMIC).__name__, type(scheduler).__name__))
    yield Model("unipc", lambda _: folder, ())
    pipeline_of.cache_clear()


def test_a_scheduler_with_flow_sigmas_of_its_own(unipc):
    case = CASES["dev-square-7-steps"]
    theirs = reference(case, folder=unipc.folder)
    assert (unipc.studio.latents(case) - theirs).abs().max() <= PARITY
    assert (MODEL["dev"].studio.latents(case) - theirs).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["dev-true-cfg", "image", "edit"])
def test_bfloat16_stays_near_diffusers_in_bfloat16(name):
    case = CASES[name]
    model = model_of(case)
    half = LoadOptions(dtype="bfloat16")
    studio = Studio(*(registry.load(model.folder, s, "flux", half) for s in ("encode", "denoise", "decode")))
    assert {p.dtype for p in studio.denoiser.pipeline.transformer.parameters()} == {torch.bfloat16}
    started = studio.start(case).latents
    assert started.dtype == torch.float32
    if case.spec.task != "image-to-image":
        assert torch.equal(started, started.bfloat16().float())  # drawn as diffusers draws it
    theirs = reference_in_bfloat16(case, model.folder)
    latents = studio.latents(case)
    assert (latents - theirs).abs().max() <= 0.1
    half_frames, frames = (s.frames(case, latents).astype(int) for s in (studio, model.studio))
    assert 0 < np.abs(half_frames - frames).mean() < 3


def reference_in_bfloat16(case: Case, folder: Path) -> torch.Tensor:
    kinds = {"image-to-image": FluxImg2ImgPipeline, "image-edit": FluxKontextPipeline}
    kind = kinds.get(case.spec.task, FluxPipeline)
    pipeline = pipeline_of(folder, kind)
    try:
        pipeline.to(torch.bfloat16)
        return reference(case).float()
    finally:
        pipeline_of.cache_clear()  # it cannot go back to its weights in fp32
