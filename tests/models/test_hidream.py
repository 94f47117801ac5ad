"""HiDream-I1 against diffusers' own pipeline (0.42), and method by method."""

from __future__ import annotations

import functools
from dataclasses import replace

import diffusers
import numpy as np
import pytest
import torch
from diffusers import FlowMatchLCMScheduler, HiDreamImagePipeline, HiDreamImageTransformer2DModel
from tests.families import hidream
from tests.families.hidream import LAYERS, MAX_RESOLUTION, MAX_SEQUENCE_LENGTH, SINGLE_LAYERS, given, spec
from tests.families.kit import Case, Model, Studio, naive_attention

from raydiance.models import registry
from raydiance.models.hidream_attention import Processor
from raydiance.models.inputs import Inputs
from raydiance.models.options import LoadOptions
from raydiance.models.spec import FieldError, Spec
from raydiance.models.tokens import Whole

EXACT = 1e-5
BATCH = 1e-4
SAVED = {model.name: model for model in hidream.MODELS}
TOKENS = (MAX_RESOLUTION // 2) ** 2
SIZES = [(32, 32), (28, 36), (48, 20), (16, 60)]  # (48, 20) and (16, 60) have 60 tokens, padded to 64


@functools.cache
def studio_of(kind: str) -> Studio:
    name = f"hidream-{kind}"
    saved = SAVED.get(name) or Model(name, functools.partial(hidream.save_hidream, kind=kind), ())
    return saved.studio


def diffusers_result(studio: Studio, spec: Spec, output_type: str) -> torch.Tensor | np.ndarray:
    """What the pipeline gives, with a scheduler as it was loaded.

    It hands its generator to the first noise but not to the scheduler, which so draws from torch's own. Without a
    generator both draw from torch's own, in the order in which a request here draws from its generator.
    """
    encode = {name: part for name, part in studio.encoder.pipeline.components.items() if part is not None}
    scheduler = studio.denoiser.pipeline.scheduler
    pipe = HiDreamImagePipeline(
        **encode,
        vae=studio.decoder.pipeline.vae,
        transformer=studio.denoiser.pipeline.transformer,
        scheduler=type(scheduler).from_config(scheduler.config),
    )
    pipe.default_sample_size = MAX_RESOLUTION  # 128 in the class, which is that of the published transformers
    pipe.set_progress_bar_config(disable=True)
    stochastic = isinstance(scheduler, FlowMatchLCMScheduler)
    with torch.random.fork_rng():
        torch.manual_seed(spec.seed)
        return pipe(
            spec.prompt,
            negative_prompt=spec.negative_prompt,
            height=spec.height,
            width=spec.width,
            num_inference_steps=spec.num_inference_steps,
            guidance_scale=spec.guidance_scale,
            generator=None if stochastic else torch.Generator().manual_seed(spec.seed),
            max_sequence_length=MAX_SEQUENCE_LENGTH,
            output_type=output_type,
        ).images


def assert_is_diffusers(kind: str, wanted: Spec) -> None:
    studio, case = studio_of(kind), Case("t2i", wanted)
    latents, frames = studio.latents(case), studio.frames(case)
    assert (latents - diffusers_result(studio, wanted, "latent")[0]).abs().max() <= EXACT
    pixels = diffusers_result(studio, wanted, "np")
    assert frames.shape == pixels.shape == (1, wanted.height, wanted.width, 3)
    assert np.array_equal(frames, (pixels * 255).round().astype(np.uint8))


def test_the_numbers_are_those_of_this_version():
    assert diffusers.__version__.startswith("0.42.")


@pytest.mark.parametrize("kind", hidream.SCHEDULERS)
@pytest.mark.parametrize("guidance_scale", [0.0, 4.0], ids=["single", "guided"])
@pytest.mark.parametrize(("size", "num_steps"), [(SIZES[0], 3), (SIZES[1], 5)], ids=["square", "wide"])
def test_text_to_image_is_diffusers(kind, guidance_scale, size, num_steps):
    height, width = size
    values = {"height": height, "width": width, "num_inference_steps": num_steps, "guidance_scale": guidance_scale}
    assert_is_diffusers(kind, spec("text-to-image", kind, **values))


@pytest.mark.parametrize(("height", "width"), SIZES[2:])
def test_padded_pictures_are_diffusers(height, width):
    assert_is_diffusers("full", spec("text-to-image", "full", height=height, width=width, num_inference_steps=12))


@pytest.mark.parametrize("kind", ["full", "fast"])
def test_everything_that_is_asked_for_counts(kind):
    studio, base = studio_of(kind), spec("text-to-image", kind, guidance_scale=3.0)
    changed = [
        base,
        replace(base, prompt="the blue square"),
        replace(base, negative_prompt=""),
        replace(base, guidance_scale=5.0),
        replace(base, guidance_scale=1.0),
        replace(base, seed=8),
        replace(base, num_inference_steps=5),
    ]
    results = [studio.latents(Case("", s)) for s in changed]
    for i, one in enumerate(results):
        for other in results[:i]:
            assert (one - other).abs().max() > 1e-2


def test_each_encoder_counts():
    studio = studio_of("full")
    case = Case("", spec("text-to-image", "full", guidance_scale=0.0))
    conditioning = studio.conditioning(case)
    expected = studio.latents(case)
    for name, tensor in conditioning.items():
        started = studio.engine().start(case.spec, {**conditioning, name: tensor + 1.0})
        assert (studio.run(started).latents - expected).abs().max() > 1e-3, name
    layers = conditioning["prompt_embeds_llama3"]
    for k in range(len(layers)):
        other = torch.cat([layers[:k], layers[k : k + 1] + 1.0, layers[k + 1 :]])
        started = studio.engine().start(case.spec, {**conditioning, "prompt_embeds_llama3": other})
        assert (studio.run(started).latents - expected).abs().max() > 1e-4, k


def test_a_text_has_the_same_embeddings_whatever_it_is_batched_with():
    encoder = studio_of("full").encoder
    texts = ["a red circle", "", "the blue square moves left", "a " * 40]
    shapes = {"prompt_embeds_t5": (12, 24), "prompt_embeds_llama3": (3, 12, 16), "pooled_prompt_embeds": (20,)}
    for text, embeds in zip(texts, encoder.encode_prompts(texts), strict=True):
        assert {name: tuple(tensor.shape) for name, tensor in embeds.items()} == shapes
        [alone] = encoder.encode_prompts([text])
        assert all(torch.equal(alone[name], tensor) for name, tensor in embeds.items())


def test_conditioning_holds_what_the_spec_needs_and_no_more():
    denoiser, prompt, negative = studio_of("full").denoiser, {"a": torch.zeros(1)}, {"a": torch.ones(1)}
    picture = {"image_latents": torch.zeros(2)}
    assert set(denoiser.conditioning(spec("text-to-image", "full", guidance_scale=1.0), prompt, negative)) == {"a"}
    guided = denoiser.conditioning(spec("image-to-image", "full"), prompt, negative, picture)
    assert set(guided) == {"a", "negative_a", "image_latents"}
    with pytest.raises(ValueError, match=r"guidance_scale=3\.0"):
        denoiser.conditioning(spec("text-to-image", "full"), prompt)
    with pytest.raises(ValueError, match="init"):
        denoiser.conditioning(spec("image-to-image", "full"), prompt, negative)


@pytest.mark.parametrize("kind", ["full", "fast"])
def test_a_full_strength_is_text_to_image(kind):
    studio = studio_of(kind)
    made = studio.latents(Case("", spec("image-to-image", kind, strength=1.0), given()))
    assert torch.equal(made, studio.latents(Case("", spec("text-to-image", kind))))


@pytest.mark.parametrize("kind", ["full", "fast"])
def test_a_lower_strength_keeps_more_of_the_picture(kind):
    studio = studio_of(kind)

    def distance(strength: float, seed: int) -> float:
        wanted = spec("image-to-image", kind, num_inference_steps=10, strength=strength)
        start = studio.start(Case("", wanted, given(seed=seed)))
        return float((start.latents - start.fixed.conditioning["image_latents"]).square().mean())

    assert distance(0.2, 0) < distance(0.5, 0) < distance(0.9, 0)
    cases = [Case("", spec("image-to-image", kind, strength=0.75), given(seed=seed)) for seed in (0, 1)]
    one, two = (studio.latents(case) for case in cases)
    assert (one - two).abs().max() > 1e-2


def test_a_picture_starts_as_the_vae_has_it_and_noised():
    studio, wanted = studio_of("full"), spec("image-to-image", "full", strength=0.5)
    vae, given_picture = studio.decoder.pipeline.vae, given()
    [encoded] = studio.decoder.encode_inputs(wanted, given_picture).values()
    pixels = torch.tensor(np.asarray(given_picture.image("init"))).permute(2, 0, 1)[None] / 127.5 - 1.0
    with torch.no_grad():
        mode = vae.encode(pixels).latent_dist.mode()[0]
    torch.testing.assert_close(encoded / vae.config.scaling_factor + vae.config.shift_factor, mode)
    solver = studio.denoiser.new_solver(wanted)
    noise = torch.randn(1, *encoded.shape, generator=torch.Generator().manual_seed(wanted.seed))[0]
    expected = solver.add_noise(encoded, noise, 2)
    assert torch.equal(studio.start(Case("", wanted, given_picture)).latents, expected)


def test_a_picture_in_another_role_is_refused():
    decoder, picture = studio_of("full").decoder, given().images["init"]
    with pytest.raises(ValueError, match="takes init, not reference"):
        decoder.encode_inputs(spec("image-to-image", "full"), Inputs({"reference": picture}))
    with pytest.raises(ValueError, match="no input"):
        decoder.encode_inputs(spec("text-to-image", "full"), Inputs({"init": picture}))


@pytest.mark.parametrize(("height", "width"), [(24, 24), (36, 36), (24, 32), (8, 64)])
def test_a_size_that_diffusers_would_change_is_refused(height, width):
    studio = studio_of("full")
    wanted = spec("text-to-image", "full", height=height, width=width, num_inference_steps=1)
    made = diffusers_result(studio, wanted, "np").shape[1:3]
    assert made != (height, width)
    with pytest.raises(FieldError, match=rf"height={height}, width={width}: .* about 1024 pixels") as refused:
        studio.denoiser.card.check(wanted)
    assert refused.value.field == "height"
    nearest = [int(part.split("=")[1]) for part in refused.value.message.split("nearest size is ")[1].split(", ")]
    studio.denoiser.card.check(replace(wanted, height=nearest[0], width=nearest[1]))


@pytest.mark.parametrize("guidance_scale", [0.0, 4.0], ids=["single", "guided"])
@pytest.mark.parametrize(("height", "width"), SIZES[:2])
def test_an_attention_from_outside_is_used_in_every_block(height, width, guidance_scale):
    studio, calls = studio_of("full"), []
    values = {"height": height, "width": width, "guidance_scale": guidance_scale}
    case = Case("", spec("text-to-image", "full", **values))

    def naive(q, k, v):
        calls.append((q.shape[0], q.shape[1], k.shape[1]))
        return naive_attention(q, k, v)

    expected = studio.latents(case)
    try:
        studio.denoiser.set_attention(naive)
        latents = studio.latents(case)
    finally:
        studio.denoiser.set_attention(None)
    length = studio.denoiser.num_tokens(case.spec, studio.conditioning(case))
    assert length == TOKENS + 3 * MAX_SEQUENCE_LENGTH
    rows = 2 if guidance_scale > 1 else 1  # both branches go together
    assert calls == [(rows, length, length)] * (LAYERS + SINGLE_LAYERS) * case.spec.num_inference_steps
    assert (latents - expected).abs().max() <= BATCH
    assert torch.equal(studio.latents(case), expected)
    assert len(calls) == (LAYERS + SINGLE_LAYERS) * case.spec.num_inference_steps  # no longer used


def test_an_attention_from_outside_is_what_counts():
    studio, case = studio_of("full"), Case("", spec("text-to-image", "full"))
    expected = studio.latents(case)
    try:
        studio.denoiser.set_attention(lambda q, k, v: torch.zeros_like(q))
        assert (studio.latents(case) - expected).abs().max() > 1e-2
    finally:
        studio.denoiser.set_attention(None)


@torch.no_grad()
def test_an_attention_from_outside_takes_heads_that_are_rotated_in_part():
    torch.manual_seed(0)
    transformer = HiDreamImageTransformer2DModel(
        patch_size=2,
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        caption_channels=[8, 8],
        text_emb_dim=8,
        axes_dims_rope=(4, 2, 2),
        max_resolution=(8, 8),
        llama_layers=(0, 1),
    ).eval()
    given = {
        "hidden_states": torch.randn(1, 4, 6, 8),
        "timesteps": torch.tensor([500.0]),
        "encoder_hidden_states_t5": torch.randn(1, 3, 8),
        "encoder_hidden_states_llama3": torch.randn(2, 1, 3, 8),
        "pooled_embeds": torch.randn(1, 8),
    }
    expected = transformer(**given).sample
    attention = torch.nn.functional.scaled_dot_product_attention
    processor = Processor(Whole(lambda q, k, v: attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)))
    for block in (*transformer.double_stream_blocks, *transformer.single_stream_blocks):
        block.block.attn1.set_processor(processor)
    torch.testing.assert_close(transformer(**given).sample, expected, atol=1e-6, rtol=0)


def test_bfloat16_stays_near():
    studio, case = studio_of("full"), Case("", spec("text-to-image", "full"))
    folder, options = SAVED["hidream-full"].folder, LoadOptions(dtype="bfloat16")
    half = Studio(*(registry.load(folder, stage, "hidream", options) for stage in ("encode", "denoise", "decode")))
    assert half.denoiser.pipeline.transformer.final_layer.linear.weight.dtype == torch.bfloat16
    latents = half.latents(case)
    assert latents.dtype == torch.float32
    assert 0 < (latents - studio.latents(case)).abs().mean() <= 0.1
    assert half.frames(case).shape == (1, 28, 36, 3)


def test_an_unknown_stage_is_refused():
    with pytest.raises(ValueError, match="'paint' is not one of encode, denoise, decode"):
        registry.load(SAVED["hidream-full"].folder, "paint", "hidream")
