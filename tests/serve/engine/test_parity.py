"""The engine against diffusers' own pipelines: same checkpoint, same seed, same latents."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.studio import RANDOM, TRAINED, make_spec, studio_of

LATENTS = 1e-5
SPECS = {
    "t2v": make_spec(),
    "t2v-unguided-odd-size": make_spec(height=16, width=80, guidance_scale=1.0, num_inference_steps=30),
    "t2v-guided-30-steps": make_spec(guidance_scale=6.0, num_inference_steps=30, seed=2**63 - 1),
    "t2v-longer": make_spec(height=48, width=32, num_frames=9, prompt="the blue square", seed=1),
    "t2v-no-negative-prompt": make_spec(negative_prompt="", num_frames=1),
    "t2i": make_spec("text-to-image", height=48, width=16),
    "t2i-30-steps": make_spec("text-to-image", height=32, width=32, guidance_scale=4.0, num_inference_steps=30),
    "i2v": make_spec("image-to-video", num_frames=9),
    "i2v-guided-30-steps": make_spec("image-to-video", guidance_scale=5.0, num_inference_steps=30),
    "i2v-unguided-odd-size": make_spec("image-to-video", height=80, width=16, guidance_scale=1.0),
    "i2i": make_spec("image-to-image", num_inference_steps=10, strength=0.6),
    "v2v": make_spec("video-to-video", num_frames=9, num_inference_steps=10, strength=0.6),
    "i2i-30-steps": make_spec("image-to-image", num_inference_steps=30, strength=0.9, guidance_scale=1.0),
}


@pytest.mark.parametrize("name", [*RANDOM, TRAINED])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_latents_are_those_of_diffusers(name, spec):
    studio = studio_of(name)
    ours, theirs = studio.latents(spec), studio.reference(spec)
    assert ours.shape == theirs.shape
    assert theirs.std() > 0.1
    assert (ours - theirs).abs().max() <= LATENTS


@pytest.mark.parametrize("spec", [SPECS[k] for k in ("t2v", "t2v-unguided-odd-size", "t2i", "i2i", "v2v")])
def test_without_expanded_timesteps_too(spec):
    studio = studio_of("flat")
    assert (studio.latents(spec) - studio.reference(spec)).abs().max() <= LATENTS


@pytest.mark.parametrize("name", ["unipc", TRAINED])
@pytest.mark.parametrize("spec", [SPECS[k] for k in ("t2v", "t2i", "i2v", "i2i")])
def test_frames_are_those_of_diffusers(name, spec):
    studio = studio_of(name)
    frames = np.concatenate(list(studio.decoder.decode(studio.latents(spec), spec)))
    theirs = (studio.reference(spec, output_type="np") * 255).round().astype(np.uint8)
    assert frames.shape == theirs.shape == (spec.num_frames, spec.height, spec.width, 3)
    assert np.abs(frames.astype(int) - theirs.astype(int)).max() <= 1  # a value next to .5 may round the other way
    assert (frames != theirs).mean() < 1e-3


@pytest.mark.parametrize("name", ["unipc", TRAINED])
def test_what_is_asked_for_matters(name):
    """Parity would be empty on a model that ignores its inputs."""
    studio, spec = studio_of(name), make_spec(num_inference_steps=8)
    base = studio.latents(spec)
    for other in ({"prompt": "a blue square"}, {"negative_prompt": "left"}, {"guidance_scale": 5.0}, {"seed": 8}):
        assert (studio.latents(make_spec(num_inference_steps=8, **other)) - base).abs().max() > 1e-2, other


def test_initial_noise_is_that_of_torch():
    generator = torch.Generator("cpu").manual_seed(7)
    assert torch.equal(
        studio_of("unipc").start(make_spec()).latents, torch.randn(1, 4, 2, 4, 6, generator=generator)[0]
    )
