"""LTX-2.3 against diffusers 0.42's own pipelines: video and sound, latents and what is decoded."""

from __future__ import annotations

from dataclasses import replace

import diffusers
import numpy as np
import pytest
import torch
from tests.families.kit import Case
from tests.families.ltx import LAYERS, MODELS, PLAIN, SCALES, SIGMAS, given, spec
from tests.families.ltx_diffusers import as_bytes, latents_as_theirs, run

from raydiance.models.inputs import Inputs
from raydiance.models.spec import FieldError

LTX, DISTILLED = MODELS
SAME = 1e-5
CASES = {
    "t2v": Case("", spec()),
    "t2v-7-steps-odd-size": Case("", spec(height=32, width=160, num_inference_steps=7, seed=1)),
    "t2v-longer": Case("", spec(height=96, width=32, num_frames=17, fps=12)),
    "t2v-plain": Case("", spec(extra=PLAIN, guidance_scale=1.0)),
    "t2v-plain-7-steps": Case("", spec(extra=PLAIN, guidance_scale=1.0, num_inference_steps=7, height=32)),
    "t2v-guided-only": Case("", spec(extra={**PLAIN, "audio_guidance_scale": 4.0})),
    "t2v-sound-guided-only": Case("", spec(extra={**PLAIN, "audio_guidance_scale": 4.0}, guidance_scale=1.0)),
    "t2v-perturbed-only": Case("", spec(extra={**PLAIN, "stg_scale": 1.0, "audio_stg_scale": 0.5}, guidance_scale=1.0)),
    "t2v-isolated-only": Case("", spec(extra={**PLAIN, "modality_scale": 3.0}, guidance_scale=1.0)),
    "i2v": Case("", spec("image-to-video"), given()),
    "i2v-7-steps-odd-size": Case(
        "", spec("image-to-video", height=160, width=32, num_inference_steps=7), given(32, 160)
    ),
    "i2v-plain": Case("", spec("image-to-video", extra=PLAIN, guidance_scale=1.0), given()),
}


def test_a_scale_of_0_is_0():
    """diffusers' call takes 0 of the sound for that of the video."""
    one, other = ({**PLAIN, "stg_scale": 1.0, "audio_stg_scale": value} for value in (0.0, 1.0))
    zero, same = (LTX.studio.latents(Case("", spec(extra=extra, guidance_scale=1.0))) for extra in (one, other))
    assert (zero - same).abs().max() > 1e-4
    case = Case("", spec(extra=one, guidance_scale=1.0))
    assert (latents_as_theirs(LTX, case, same)[1] - run(LTX, case, "latent")[1]).abs().max() <= SAME


def test_the_version_compared_with():
    assert diffusers.__version__.startswith("0.42.")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_latents_of_video_and_sound_are_those_of_diffusers(case):
    ours = latents_as_theirs(LTX, case, LTX.studio.latents(case))
    for mine, theirs in zip(ours, run(LTX, case, "latent"), strict=True):
        assert mine.shape == theirs.shape
        assert (mine - theirs).abs().max() <= SAME


@pytest.mark.parametrize("name", ["t2v", "t2v-plain", "i2v"])
def test_frames_and_waveform_are_those_of_diffusers(name):
    case = CASES[name]
    latents = LTX.studio.latents(case)
    frames, sound = run(LTX, case, "np")
    assert np.array_equal(LTX.studio.frames(case, latents), as_bytes(frames))
    audio = LTX.studio.decoder.decode_audio(latents, case.spec)
    assert audio.sample_rate == 48_000
    assert audio.samples.shape == sound[0].shape
    assert np.abs(audio.samples - sound[0].numpy()).max() <= SAME


def test_a_distilled_checkpoint_has_a_schedule_of_its_own():
    case = DISTILLED.cases[0]
    for mine, theirs in zip(
        latents_as_theirs(DISTILLED, case, DISTILLED.studio.latents(case)), run(DISTILLED, case, "latent"), strict=True
    ):
        assert (mine - theirs).abs().max() <= SAME
    card = DISTILLED.studio.denoiser.card
    assert (card.has_guidance, card.parameters) == (False, ())
    with pytest.raises(FieldError, match=f"num_inference_steps=5 must be between {len(SIGMAS)} and {len(SIGMAS)}"):
        card.check(replace(case.spec, num_inference_steps=5))


@pytest.mark.parametrize(
    "other",
    [
        {"prompt": "the blue square"},
        {"negative_prompt": "over"},
        {"guidance_scale": 5.0},
        {"fps": 16},
        *({"extra": {**SCALES, name: value + 0.3}} for name, value in SCALES.items()),
    ],
    ids=str,
)
def test_everything_counts(other):
    base = LTX.studio.latents(CASES["t2v"])
    changed = LTX.studio.latents(Case("", spec(**other)))
    if changed.shape == base.shape:
        assert (changed - base).abs().max() > 1e-4


def test_sound_on_or_off_leaves_the_picture_alone():
    case = CASES["t2v"]
    silent = replace(case, spec=replace(case.spec, audio=False))
    latents = LTX.studio.latents(silent)
    assert torch.equal(latents, LTX.studio.latents(case))
    assert LTX.studio.decoder.decode_audio(latents, silent.spec) is None


def test_a_given_first_frame_is_kept():
    studio, case = LTX.studio, CASES["i2v"]
    image = studio.conditioning(case)["image_latents"]
    video, _ = latents_as_theirs(LTX, case, studio.latents(case))
    vae = studio.decoder.pipeline.vae
    scaled = image[:, 0] * vae.latents_std.view(-1, 1, 1) + vae.latents_mean.view(-1, 1, 1)
    torch.testing.assert_close(video[0, :, 0], scaled, atol=1e-6, rtol=0)


def test_another_role_is_refused():
    with pytest.raises(ValueError, match="takes first_frame, not init"):
        LTX.studio.decoder.encode_inputs(CASES["i2v"].spec, Inputs({"init": given().images["first_frame"]}))
    with pytest.raises(ValueError, match="first_frame"):
        LTX.studio.denoiser.conditioning(CASES["i2v"].spec, {}, {})
    with pytest.raises(ValueError, match="negative"):
        LTX.studio.denoiser.conditioning(CASES["t2v"].spec, {})


@pytest.mark.parametrize("name", ["t2v-plain", "i2v-plain"])
def test_an_attention_from_outside_is_used_in_every_block(name):
    studio, case, calls = LTX.studio, CASES[name], []

    def naive(q, k, v):
        calls.append((q.shape[1], k.shape[1]))
        scores = torch.einsum("blhd,bshd->bhls", q, k) / q.shape[-1] ** 0.5
        return torch.einsum("bhls,bshd->blhd", scores.softmax(dim=-1), v)

    expected = studio.latents(case)
    try:
        studio.denoiser.set_attention(naive)
        latents = studio.latents(case)
    finally:
        studio.denoiser.set_attention(None)
    tokens, sound = studio.denoiser.config.latent_shape(case.spec), studio.denoiser.config.audio_shape(case.spec)[1]
    video = tokens[1] * tokens[2] * tokens[3]
    text = studio.conditioning(case)["prompt_embeds"].shape[0]
    block = {(video, video), (sound, sound), (video, text), (sound, text), (video, sound), (sound, video)}
    assert set(calls) == block
    assert len(calls) == len(block) * LAYERS * case.spec.num_inference_steps
    assert (latents - expected).abs().max() <= 1e-4
    assert torch.equal(studio.latents(case), expected)
