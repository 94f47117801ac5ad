"""LTX-2.3 and 2.0 against diffusers 0.42's own pipelines: video and sound, latents and what is decoded."""

from __future__ import annotations

from dataclasses import replace

import diffusers
import numpy as np
import pytest
import torch
from tests.families.kit import Case, Studio, naive_attention
from tests.families.ltx import LAYERS, MODELS, OLD, PLAIN, SCALES, SIGMAS, given, spec
from tests.families.ltx_diffusers import as_bytes, latents_as_theirs, run

from raydiance.models import registry
from raydiance.models.inputs import Inputs
from raydiance.models.options import LoadOptions
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


def without_stg(scales):
    """Of a checkpoint without spatio-temporal guidance."""
    return {name: value for name, value in scales.items() if "stg" not in name}


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


@pytest.mark.parametrize("task", ["text-to-video", "image-to-video"])
def test_ltx_2_0_is_that_of_diffusers(task):
    """Text with padding, a VAE that takes a timestep, no spatio-temporal guidance, another vocoder."""
    case = Case("", spec(task, extra=without_stg(SCALES)), given() if task == "image-to-video" else None)
    assert OLD.studio.denoiser.config.pads_text
    assert OLD.studio.decoder.pipeline.vae.config.timestep_conditioning
    latents = OLD.studio.latents(case)
    for mine, theirs in zip(latents_as_theirs(OLD, case, latents), run(OLD, case, "latent"), strict=True):
        assert (mine - theirs).abs().max() <= SAME
    frames, sound = run(OLD, case, "np")
    assert np.array_equal(OLD.studio.frames(case, latents), as_bytes(frames))
    audio = OLD.studio.decoder.decode_audio(latents, case.spec)
    assert audio.sample_rate == 16_000
    assert np.abs(audio.samples - sound[0].numpy()).max() <= SAME


def test_a_distilled_checkpoint_has_a_schedule_of_its_own():
    case = DISTILLED.cases[0]
    assert DISTILLED.studio.denoiser.new_solver(case.spec).sigmas.tolist() == pytest.approx([*SIGMAS, 0.0])
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
    if "fps" in other:  # the sound has another length
        base, changed = (t[: LTX.studio.denoiser._split(base, CASES["t2v"].spec)[0].numel()] for t in (base, changed))
    assert (changed - base).abs().max() > 1e-4


@pytest.mark.parametrize("task", ["text-to-video", "image-to-video"])
def test_rows_with_and_without_each_guidance_share_their_forwards(task):
    """One forward of all prompts, one for each kind of guidance that a row has; each row as it is alone."""
    studio, inputs, calls = LTX.studio, given() if task == "image-to-video" else None, []
    cases = [
        Case("", spec(task, extra=PLAIN, guidance_scale=1.0)),
        Case("", spec(task, seed=1)),
        Case("", spec(task, seed=2, extra={**PLAIN, "stg_scale": 1.0}, guidance_scale=1.0)),
        Case("", spec(task, seed=3, extra={**PLAIN, "audio_modality_scale": 2.0})),
    ]
    together, engine = [studio.start(replace(case, inputs=inputs)) for case in cases], studio.engine()
    assert len({engine.plan_item(t).key for t in together}) == 1
    transformer = studio.denoiser.pipeline.transformer
    hook = transformer.register_forward_pre_hook(
        lambda _, __, given: calls.append(len(given["hidden_states"])), with_kwargs=True
    )
    try:
        stepped = engine.step(together)
    finally:
        hook.remove()
    assert calls == [2 + 4, 2, 2]
    for one, alone in zip(stepped, together, strict=True):
        assert (one.latents - engine.step([alone])[0].latents).abs().max() <= SAME


@pytest.mark.parametrize("other", [{"fps": 9}, {"height": 96, "width": 64}], ids=str)
def test_what_changes_positions_is_not_batched(other):
    """Both have as many tokens as the first, of picture and of sound."""
    studio, engine = LTX.studio, LTX.studio.engine()
    one, another = (studio.start(Case("", spec(num_frames=1, **values))) for values in ({}, other))
    assert one.latents.shape == another.latents.shape
    assert engine.plan_item(one).key != engine.plan_item(another).key


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


ALONE, WITH_TEXT, TOGETHER = 2, 2, 2  # attentions of a block: of each to itself, to its text, to the other
PERTURBED = 1  # blocks


@pytest.mark.parametrize(
    ("model", "case", "num_calls"),
    [
        (LTX, CASES["t2v-plain"], (ALONE + WITH_TEXT + TOGETHER) * LAYERS),
        (LTX, CASES["i2v-plain"], (ALONE + WITH_TEXT + TOGETHER) * LAYERS),
        (LTX, CASES["i2v"], (3 * (ALONE + WITH_TEXT) + 2 * TOGETHER) * LAYERS - ALONE * PERTURBED),
        (OLD, Case("", spec(extra=without_stg(PLAIN), guidance_scale=1.0)), (ALONE + TOGETHER) * LAYERS),
    ],
    ids=["t2v", "i2v", "i2v-guided", "own-where-text-is-padded"],
)
def test_an_attention_from_outside_is_used_in_every_block(model, case, num_calls):
    studio, shapes = model.studio, []

    def naive(q, k, v):
        shapes.append((q.shape[1], k.shape[1]))
        return naive_attention(q, k, v)

    expected = studio.latents(case)
    try:
        studio.denoiser.set_attention(naive)
        latents = studio.latents(case)
    finally:
        studio.denoiser.set_attention(None)
    config = studio.denoiser.config
    video, sound = np.prod(config.latent_shape(case.spec)[1:]), config.audio_shape(case.spec)[1]
    between = {(video, video), (sound, sound), (video, sound), (sound, video)}
    text = studio.conditioning(case)["prompt_embeds"].shape[0]
    assert set(shapes) == between | (set() if model is OLD else {(video, text), (sound, text)})
    assert len(shapes) == num_calls * case.spec.num_inference_steps
    assert (latents - expected).abs().max() <= 1e-4
    assert torch.equal(studio.latents(case), expected)


@pytest.mark.parametrize("name", ["attn1", "audio_to_video_attn"])
def test_an_attention_from_outside_takes_no_mask_of_what_can_be_cut(name):
    denoiser = LTX.studio.denoiser
    try:
        denoiser.set_attention(lambda q, k, v: v)
        attention = getattr(denoiser.pipeline.transformer.transformer_blocks[0], name)
        with pytest.raises(ValueError, match="no mask"):
            attention(torch.zeros(1, 3, 16), attention_mask=torch.zeros(1, 1, 3))
    finally:
        denoiser.set_attention(None)


def test_an_attention_from_outside_is_skipped_for_all_rows_or_for_none():
    denoiser = LTX.studio.denoiser
    try:
        denoiser.set_attention(lambda q, k, v: v)
        attention = denoiser.pipeline.transformer.transformer_blocks[0].attn1
        with pytest.raises(ValueError, match="for all rows"):
            attention(torch.zeros(2, 3, 16), perturbation_mask=torch.tensor([0.0, 1.0]), all_perturbed=False)
    finally:
        denoiser.set_attention(None)


@pytest.mark.parametrize("model", [LTX, OLD], ids=lambda m: m.name)
def test_in_bfloat16_every_stage_runs_and_stays_near(model):
    options = LoadOptions(dtype="bfloat16")
    stages = [registry.load(model.folder, stage, "ltx", options) for stage in ("encode", "denoise", "decode")]
    studio, extra = Studio(*stages), PLAIN if model is LTX else without_stg(PLAIN)
    assert studio.denoiser.pipeline.transformer.dtype == torch.bfloat16
    case = Case("", spec("image-to-video", extra=extra, guidance_scale=1.0), given())
    latents, expected = studio.latents(case), model.studio.latents(case)
    assert latents.dtype == torch.float32
    assert 0 < (latents - expected).abs().max() <= 0.2
    frames, exact = (s.frames(case, expected).astype(int) for s in (studio, model.studio))
    assert np.abs(frames - exact).mean() <= 2
    sound, exact = (s.decoder.decode_audio(expected, case.spec).samples for s in (studio, model.studio))
    assert (sound.dtype, sound.shape) == (np.float32, exact.shape)
    assert np.abs(sound - exact).mean() <= 0.02 * np.abs(exact).max()
