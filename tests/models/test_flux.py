"""The FLUX family, method by method."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.families.flux import LAYERS, MAX_SEQUENCE_LENGTH, SINGLE_LAYERS, given, spec
from tests.families.flux_diffusers import CASES, MODEL, case_of, edit, model_of
from tests.families.kit import naive_attention

from raydiance.models import registry

TEXTS = ["a red circle", "", "the blue square moves left", "a red circle", "a " * 40]


def test_a_text_has_the_same_embedding_whatever_it_is_batched_with():
    encoder = MODEL["dev"].studio.encoder
    together = encoder.encode_prompts(TEXTS)
    for text, tensors in zip(TEXTS, together, strict=True):
        [alone] = encoder.encode_prompts([text])
        assert set(tensors) == {"prompt_embeds", "pooled_prompt_embeds"}
        assert all(torch.equal(alone[name], tensors[name]) for name in tensors)
    assert together[0]["prompt_embeds"].shape == (MAX_SEQUENCE_LENGTH, 24)
    assert together[0]["pooled_prompt_embeds"].shape == (16,)
    assert encoder.encode_prompts([]) == []


def test_conditioning_holds_what_the_spec_needs_and_no_more():
    studio, case = MODEL["dev"].studio, CASES["image-whole-schedule"]
    prompt, negative = studio.encoder.encode_prompts(["a", "b"])
    inputs = studio.decoder.encode_inputs(case.spec, case.inputs)
    assert set(inputs) == {"image_mean", "image_std"}
    assert set(studio.denoiser.conditioning(CASES["dev"].spec, prompt, negative, inputs)) == set(prompt)
    merged = studio.denoiser.conditioning(case.spec, prompt, negative, inputs)
    assert set(merged) == {*prompt, *inputs, "negative_prompt_embeds", "negative_pooled_prompt_embeds"}
    assert merged["negative_prompt_embeds"] is negative["prompt_embeds"]
    with pytest.raises(ValueError, match=r"true_cfg_scale=3\.0 needs"):
        studio.denoiser.conditioning(case.spec, prompt, None, inputs)
    with pytest.raises(ValueError, match="role 'init'"):
        studio.denoiser.conditioning(case.spec, prompt, negative)


def test_what_a_task_does_not_take_is_refused():
    with pytest.raises(ValueError, match="takes init, not reference"):
        MODEL["dev"].studio.decoder.encode_inputs(CASES["image"].spec, given("reference"))
    kontext = MODEL["kontext"].studio.decoder
    with pytest.raises(ValueError, match="no input"):
        kontext.encode_inputs(CASES["kontext"].spec, given("reference"))
    with pytest.raises(ValueError, match="reference of 90x20 is smaller than 64x64"):
        kontext.encode_inputs(CASES["edit"].spec, given("reference", 90, 20))


def test_the_samples_of_a_picture_share_its_conditioning():
    studio, case = MODEL["dev"].studio, CASES["image"]
    first, second = (studio.start(replace(case, spec=replace(case.spec, seed=seed))) for seed in (1, 2))
    assert first.fixed.conditioning_id == second.fixed.conditioning_id
    assert not torch.equal(first.latents, second.latents)


def test_only_equal_grids_share_a_forward():
    dev, kontext = MODEL["dev"].studio, MODEL["kontext"].studio
    turned = case_of("text-to-image", "dev", height=80, width=48)  # as many tokens, at other places
    longer = case_of("text-to-image", "dev", num_inference_steps=9, guidance_scale=1.0, true_cfg_scale=2.0)
    base, other, same = (dev.engine().plan_item(dev.start(c)) for c in (CASES["dev"], turned, longer))
    assert base.num_tokens == other.num_tokens == 3 * 5 + MAX_SEQUENCE_LENGTH
    assert base.key != other.key
    assert base.key == same.key
    references = [CASES["edit"], edit(120, 180), edit(190, 125), case_of("text-to-image", "kontext")]
    wide, tall, wide_too, none = (kontext.engine().plan_item(kontext.start(c)) for c in references)
    assert len({wide.key, tall.key, none.key}) == 3
    assert wide.key == wide_too.key
    assert none.num_tokens == 2 * 3 + MAX_SEQUENCE_LENGTH
    assert wide.num_tokens == none.num_tokens + (704 // 64) * (1456 // 64)


def test_a_schedule_is_of_a_size_and_a_number_of_steps():
    denoiser = MODEL["dev"].studio.denoiser
    small, large = (spec("text-to-image", "dev", height=side, width=side) for side in (64, 1024))
    assert denoiser.new_solver(small) is denoiser.new_solver(replace(small, seed=9))
    assert denoiser.new_solver(small).sigmas[1] < denoiser.new_solver(large).sigmas[1]
    assert denoiser.new_solver(replace(small, num_inference_steps=9)).num_steps == 9


@pytest.mark.parametrize("name", ["dev", "edit"])
def test_an_attention_from_outside_is_used_in_every_block(name):
    case, calls = CASES[name], []
    studio = model_of(case).studio

    def naive(q, k, v):
        calls.append((q.shape[1], k.shape[1], v.shape[1]))
        return naive_attention(q, k, v)

    expected = studio.latents(case)
    try:
        studio.denoiser.set_attention(naive)
        latents = studio.latents(case)
        studio.denoiser.set_attention(lambda q, k, v: torch.zeros_like(q))
        assert (studio.latents(case) - expected).abs().max() > 1e-2  # it is what counts
    finally:
        studio.denoiser.set_attention(None)
    num_tokens = studio.engine().plan_item(studio.start(case)).num_tokens
    assert calls == [(num_tokens,) * 3] * (LAYERS + SINGLE_LAYERS) * case.spec.num_inference_steps
    assert (latents - expected).abs().max() <= 1e-4
    assert torch.equal(studio.latents(case), expected)


def test_an_attention_from_outside_takes_no_mask():
    denoiser = MODEL["dev"].studio.denoiser
    try:
        denoiser.set_attention(lambda q, k, v: v)
        attention = denoiser.pipeline.transformer.single_transformer_blocks[0].attn
        with pytest.raises(ValueError, match="no mask"):
            attention(torch.zeros(1, 3, 32), attention_mask=torch.ones(1, 3))
    finally:
        denoiser.set_attention(None)


@pytest.mark.parametrize(
    ("stage", "held"),
    [
        ("encode", {"tokenizer", "text_encoder", "tokenizer_2", "text_encoder_2"}),
        ("denoise", {"transformer", "scheduler"}),
        ("decode", {"vae"}),
    ],
)
def test_a_stage_holds_its_own_components_and_no_others(stage, held):
    family = registry.load(MODEL["dev"].folder, stage, "flux")
    assert {name for name, part in family.pipeline.components.items() if part is not None} == held


def test_an_unknown_stage_is_refused():
    with pytest.raises(ValueError, match="'paint' is not one of encode, denoise, decode"):
        registry.load(MODEL["dev"].folder, "paint", "flux")
