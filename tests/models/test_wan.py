"""The Wan family, method by method, against diffusers' own helpers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.checkpoints import MAX_SEQUENCE_LENGTH
from tests.families.kit import naive_attention
from tests.studio import IMAGE, TRAINED, make_spec, studio_of

from raydiance.models import registry, wan
from raydiance.models.inputs import Inputs
from raydiance.models.options import LoadOptions
from raydiance.models.resolve import CheckpointError

TEXTS = ["a red circle", "", "the blue square moves left", "a red circle", "a " * 40]


@pytest.mark.parametrize("name", ["unipc", TRAINED])
def test_a_text_has_the_same_embedding_whatever_it_is_batched_with(name):
    encoder = studio_of(name).encoder
    together = encoder.encode_prompts(TEXTS)
    for text, embedding in zip(TEXTS, together, strict=True):
        assert torch.equal(encoder.encode_prompts([text])[0]["prompt_embeds"], embedding["prompt_embeds"])
    assert encoder.encode_prompts([]) == []


def test_embeddings_are_those_of_diffusers():
    encoder = studio_of("unipc").encoder
    theirs, _ = encoder.pipeline.encode_prompt(
        TEXTS, do_classifier_free_guidance=False, max_sequence_length=MAX_SEQUENCE_LENGTH
    )
    ours = torch.stack([e["prompt_embeds"] for e in encoder.encode_prompts(TEXTS)])
    assert ours.shape == (len(TEXTS), MAX_SEQUENCE_LENGTH, 16)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    assert ours[0].count_nonzero(dim=1).count_nonzero() == 4  # three words and the end


def test_conditioning_holds_what_the_spec_needs_and_no_more():
    denoiser, prompt, negative = studio_of("unipc").denoiser, torch.zeros(3, 2), torch.ones(3, 2)
    given = {"prompt_embeds": prompt}, {"prompt_embeds": negative}, {"image_latents": torch.zeros(4, 1, 4, 6)}
    assert set(denoiser.conditioning(make_spec(guidance_scale=1.0), *given)) == {"prompt_embeds"}
    guided = denoiser.conditioning(make_spec("image-to-video"), *given)
    assert set(guided) == {"prompt_embeds", "negative_prompt_embeds", "image_latents"}
    assert guided["negative_prompt_embeds"] is negative
    with pytest.raises(ValueError, match=r"guidance_scale=3\.0"):
        denoiser.conditioning(make_spec(), given[0])
    with pytest.raises(ValueError, match="first_frame"):
        denoiser.conditioning(make_spec("image-to-video"), given[0], given[1])


def test_an_image_in_another_role_is_refused():
    decoder = studio_of("unipc").decoder
    with pytest.raises(ValueError, match="takes init, not first_frame"):
        decoder.encode_inputs(make_spec("image-to-image"), Inputs({"first_frame": [IMAGE]}))
    with pytest.raises(ValueError, match="no input"):
        decoder.encode_inputs(make_spec(), Inputs({"init": [IMAGE]}))


def test_an_image_keeps_its_place_as_the_first_frame():
    studio, spec = studio_of("unipc"), make_spec("image-to-video")
    given = studio.conditioning(spec)["image_latents"]
    assert torch.equal(studio.latents(spec)[:, :1], given)


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("name", ["unipc", TRAINED])
def test_decoding_by_frames_gives_the_pixels_of_the_whole(name, frames):
    decoder = studio_of(name).decoder
    z = torch.randn(decoder.config.latent_channels, frames, 4, 6, generator=torch.Generator().manual_seed(0))
    mean, scale = decoder._latent_statistics(torch.float32)
    with torch.no_grad():
        whole = decoder.pipeline.vae.decode(z[None] / scale + mean, return_dict=False)[0]
    expected = decoder.pipeline.video_processor.postprocess_video(whole, output_type="np")[0]
    chunks = list(decoder.decode(z, make_spec()))
    assert [len(chunk) for chunk in chunks] == [1] + [decoder.card.frame_stride] * (frames - 1)
    assert all(chunk.dtype == np.uint8 for chunk in chunks)
    assert np.array_equal(np.concatenate(chunks), (expected * 255).round().astype(np.uint8))


def test_decodings_may_be_interleaved():
    decoder = studio_of("unipc").decoder
    one, two = (torch.randn(4, 3, 2, 4, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    together = list(zip(decoder.decode(one, make_spec()), decoder.decode(two, make_spec()), strict=True))
    assert all(np.array_equal(a, b) for a, (b, _) in zip(decoder.decode(one, make_spec()), together, strict=True))
    assert torch.is_grad_enabled()


def test_large_frames_are_decoded_in_tiles(monkeypatch):
    decoder = studio_of("unipc").decoder
    z = torch.randn(4, 1, 36, 40, generator=torch.Generator().manual_seed(0))
    [whole] = decoder.decode(z, make_spec())
    monkeypatch.setattr(wan, "MAX_UNTILED_PIXELS", 36 * 40 * 64 - 1)
    [tiled] = decoder.decode(z, make_spec())
    assert tiled.shape == whole.shape == (1, 288, 320, 3)
    assert not np.array_equal(tiled, whole)  # tiles were used
    assert np.abs(tiled.astype(int) - whole.astype(int)).mean() < 1
    assert not decoder.pipeline.vae.use_tiling


@pytest.mark.parametrize("task", ["text-to-video", "image-to-video"])
def test_an_attention_from_outside_is_used_in_every_block(task):
    studio, calls = studio_of("unipc"), []

    def naive(q, k, v):
        calls.append((q.shape[1], k.shape[1]))
        return naive_attention(q, k, v)

    spec = make_spec(task)
    expected = studio.latents(spec)
    try:
        studio.denoiser.set_attention(naive)
        latents = studio.latents(spec)
    finally:
        studio.denoiser.set_attention(None)
    num_tokens, blocks = studio.denoiser.card.num_tokens(32, 48, 5), 2
    block = [(num_tokens, num_tokens), (num_tokens, MAX_SEQUENCE_LENGTH)]  # self-, then cross-attention
    forwards = 2 * spec.num_inference_steps  # with the prompt, and with the negative prompt
    assert calls == block * blocks * forwards
    assert (latents - expected).abs().max() <= 1e-4
    assert torch.equal(studio.latents(spec), expected)
    assert len(calls) == len(block) * blocks * forwards  # no longer used


def test_an_attention_from_outside_is_what_counts():
    studio, spec = studio_of("unipc"), make_spec()
    expected = studio.latents(spec)
    try:
        studio.denoiser.set_attention(lambda q, k, v: torch.zeros_like(q))
        assert (studio.latents(spec) - expected).abs().max() > 1e-2
    finally:
        studio.denoiser.set_attention(None)


def test_bfloat16_stays_near_diffusers_in_bfloat16():
    studio, spec = studio_of("unipc"), make_spec(num_inference_steps=8)
    denoiser = registry.load(studio.folder, "denoise", "wan", LoadOptions(dtype="bfloat16"))
    assert denoiser.pipeline.transformer.blocks[0].attn1.to_q.weight.dtype == torch.bfloat16
    mixed = type(studio)(studio.folder, studio.encoder, denoiser, studio.decoder)
    mixed.reference_components["transformer"] = denoiser.pipeline.transformer
    latents = mixed.latents(spec)
    assert latents.dtype == torch.float32
    assert (latents - mixed.reference(spec)).abs().max() <= 5e-2
    assert (latents - studio.latents(spec)).abs().max() <= 0.2


def test_an_unknown_dtype_is_refused():
    with pytest.raises(CheckpointError, match="int8"):
        registry.load(studio_of("unipc").folder, "decode", "wan", LoadOptions(dtype="int8"))


def test_an_unknown_stage_is_refused():
    with pytest.raises(ValueError, match="'paint' is not one of encode, denoise, decode"):
        registry.load(studio_of("unipc").folder, "paint", "wan")
