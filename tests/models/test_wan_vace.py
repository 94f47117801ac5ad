"""VACE and given frames: what is made of inputs, what is refused, what a batch may hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.families.kit import clip, naive_attention, picture
from tests.families.wan import FIRST, I2V_A14B, LAST, MASK, MODELS, REFERENCES, VACE, VACE_2_2, spec
from tests.families.wan import FLF2V_2_1 as FLF2V
from tests.families.wan import I2V_2_1 as I2V_1

from raydiance.models.inputs import Inputs

I2V, VACE_1, VACE_2, I2V_2_1, FLF2V_2_1 = MODELS[2:]
CASES = {case.id: case for case in VACE}
VIDEO = clip(48, 32, 5)
SCALED = {"extra": {"conditioning_scale": 1.0}}


def test_references_are_denoised_along_and_dropped():
    studio, case = VACE_1.studio, CASES["r2v"]
    conditioning, trajectory = studio.conditioning(case), studio.start(case)
    assert conditioning["condition"].shape == (8 + 64, 2 + 2, 4, 6)
    assert trajectory.latents.shape == (4, 2 + 2, 4, 6)
    assert studio.latents(case).shape == (4, 2, 4, 6)
    assert studio.denoiser.num_tokens(case.spec, conditioning) == 4 * (2 * 3)
    assert studio.denoiser.card.num_tokens(32, 48, 5) == 2 * (2 * 3)


def test_a_batch_holds_one_number_of_references():
    studio = VACE_1.studio
    one = replace(CASES["r2v"], inputs=Inputs({"reference": REFERENCES["reference"][:1]}))
    keys = {studio.denoiser.batch_key(c.spec, studio.conditioning(c)) for c in (one, CASES["r2v"], CASES["t2v"])}
    assert len(keys) == 3


def test_each_row_of_a_batch_has_its_own_conditioning_scale():
    studio, engine = VACE_1.studio, VACE_1.studio.engine()
    cases = [replace(CASES["v2v"], spec=spec("video-to-video", extra={"conditioning_scale": s})) for s in (0.0, 0.5, 2)]
    together = [studio.start(case) for case in cases]
    while not together[0].is_done:
        together = engine.step(together)
    assert engine.num_forwards == 4
    latents = [engine.finish(t) for t in together]
    for case, ours in zip(cases, latents, strict=True):
        assert (ours - studio.latents(case)).abs().max() <= 1e-5
    assert (latents[0] - latents[1]).abs().max() > 1e-3


def test_more_references_than_latent_frames_are_no_matter():
    """diffusers cuts their part of the mask to the video's length, and then fails."""
    case = replace(CASES["r2v"], inputs=Inputs({"reference": [picture(32, 32, seed=s) for s in range(8)]}))
    condition = VACE_1.studio.conditioning(case)["condition"]
    assert condition.shape == (8 + 64, 8 + 2, 4, 6)
    assert condition[8:, :8].count_nonzero() == 0
    assert condition[8:, 8:].min() == 1
    assert VACE_1.studio.latents(case).isfinite().all()


def test_the_mask_says_255_where_the_model_paints():
    condition = VACE_1.studio.conditioning(replace(CASES["v2v-mask"], inputs=Inputs({}, VIDEO, MASK)))["condition"]
    mask = condition[8:].view(8, 8, 2, 4, 6)  # 8x8 pixels of each latent one are channels
    assert mask[:, :, 0].mean((0, 1)).tolist() == [[0] * 6, [0, 0, 1, 1, 1, 0], [0, 0, 1, 1, 1, 0], [0] * 6]
    assert mask[:, :, 1, :, :2].min() == 1  # from the fourth frame on


def test_one_mask_is_for_every_frame():
    same = [replace(CASES["v2v-mask"], inputs=Inputs({}, VIDEO, mask)) for mask in (MASK[:1], MASK[:1].repeat(5, 0))]
    one, other = (VACE_1.studio.conditioning(case)["condition"] for case in same)
    assert torch.equal(one, other)


def test_nothing_given_is_an_empty_video_to_be_painted():
    studio = VACE_1.studio
    nothing = studio.conditioning(CASES["t2v"])["condition"]
    grey = np.full((5, 32, 48, 3), 127.5, np.float32)  # 0 in [-1, 1], which no byte is
    given = studio.decoder.encode_inputs(spec("video-to-video", **SCALED), Inputs(video=grey))["condition"]
    assert torch.equal(nothing, given)
    with pytest.raises(ValueError, match="needs what encode_inputs makes"):
        studio.denoiser.conditioning(CASES["t2v"].spec, {"prompt_embeds": torch.zeros(1)}, {"prompt_embeds": None})


@pytest.mark.parametrize(
    ("model", "task", "inputs", "message"),
    [
        (VACE_1, "video-to-video", Inputs({}, None, MASK), "needs an input of role 'video'"),
        (VACE_1, "reference-to-video", Inputs(), "needs an input of role 'reference'"),
        (VACE_1, "reference-to-video", Inputs({"reference": [picture(8, 8)] * 9}), "9 inputs .* limit is 8"),
        (VACE_1, "text-to-video", Inputs(FIRST), "takes reference, not first_frame"),
        (VACE_1, "image-to-video", Inputs(LAST), "needs an input of role 'first_frame'"),
        (I2V, "image-to-video", Inputs(LAST), "needs an input of role 'first_frame'"),
        (I2V, "image-to-video", Inputs(FIRST, VIDEO), "takes first_frame, last_frame, not video"),
        (MODELS[0], "image-to-video", Inputs(FIRST | LAST), "takes first_frame, not last_frame"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(model, task, inputs, message):
    with pytest.raises(ValueError, match=message):
        model.studio.decoder.encode_inputs(spec(task, **SCALED), inputs)


@pytest.mark.parametrize("model", [VACE_1, I2V], ids=["vace", "i2v"])
def test_one_frame_has_no_last_frame(model):
    one = spec("image-to-video", num_frames=1)
    assert model.studio.decoder.encode_inputs(one, Inputs(FIRST))["condition"].shape[1] == 1
    with pytest.raises(ValueError, match="num_frames=1"):
        model.studio.decoder.encode_inputs(one, Inputs(FIRST | LAST))


@pytest.mark.parametrize(("case", "frames"), [(I2V_A14B[0], [0]), (I2V_A14B[1], [0, 4])], ids=["first", "last"])
def test_the_frames_given_are_marked(case, frames):
    mask = I2V.studio.conditioning(case)["condition"][:4]  # four frames of a latent one, the first of them alone
    marked = [mask[:, 0].mean() == 1, *(mask[i, 1].mean() == 1 for i in range(4))]
    assert [i for i, is_given in enumerate(marked) if is_given] == frames
    assert mask.sum() == (4 + len(frames) - 1) * 4 * 6


def test_with_a_last_frame_or_without_they_share_a_batch():
    studio, engine = I2V.studio, I2V.studio.engine()
    together = [studio.start(case) for case in I2V_A14B]
    while not together[0].is_done:
        together = engine.step(together)
    assert engine.num_forwards == 4
    for case, trajectory in zip(I2V_A14B, together, strict=True):
        assert (engine.finish(trajectory) - studio.latents(case)).abs().max() <= 1e-5


@pytest.mark.parametrize(("model", "case"), [(I2V_2_1, I2V_1[0]), (FLF2V_2_1, FLF2V[0])], ids=["first", "both"])
def test_what_the_image_encoder_sees_counts(model, case):
    studio, engine = model.studio, model.studio.engine()
    given = studio.conditioning(case)
    assert given["image_embeds"].shape == (len(case.inputs.images), 5, 16)
    other = {**given, "image_embeds": given["image_embeds"].flip(-1)}
    latents = [studio.run(engine.start(case.spec, conditioning)).latents for conditioning in (given, other)]
    assert (latents[0] - latents[1]).abs().max() > 1e-3


@pytest.mark.parametrize(("model", "case"), [(I2V_2_1, I2V_1[0]), (FLF2V_2_1, FLF2V[0])], ids=["first", "both"])
def test_an_attention_from_outside_is_used_for_embedded_frames_too(model, case):
    studio, calls = model.studio, []

    def naive(q, k, v):
        calls.append(k.shape[1])
        return naive_attention(q, k, v)

    expected = studio.latents(case)
    try:
        studio.denoiser.set_attention(naive)
        latents = studio.latents(case)
    finally:
        studio.denoiser.set_attention(None)
    block = [studio.denoiser.card.num_tokens(32, 48, 5), 512, 5 * len(case.inputs.images)]
    assert calls == block * 2 * (2 * case.spec.num_inference_steps)
    assert (latents - expected).abs().max() <= 1e-4
    assert torch.equal(studio.latents(case), expected)


@pytest.mark.parametrize(("model", "case"), [(VACE_1, VACE[2]), (VACE_2, VACE_2_2[0])], ids=["one", "two experts"])
def test_an_attention_from_outside_is_used_in_the_branch_too(model, case):
    studio, calls = model.studio, []

    def naive(q, k, v):
        calls.append(k.shape[1])
        return naive_attention(q, k, v)

    expected = studio.latents(case)
    try:
        studio.denoiser.set_attention(naive)
        latents = studio.latents(case)
    finally:
        studio.denoiser.set_attention(None)
    forwards, blocks = 2 * case.spec.num_inference_steps, 2 + 2
    num_tokens = studio.denoiser.num_tokens(case.spec, studio.conditioning(case))
    assert calls == [num_tokens, 12] * blocks * forwards
    assert (latents - expected).abs().max() <= 1e-4
    assert torch.equal(studio.latents(case), expected)
