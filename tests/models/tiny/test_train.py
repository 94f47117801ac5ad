"""Training from end to end in seconds, and its parts against plain references."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from raydiance.models.tiny import dit, evaluate, export, latents, optim, tokenizer, train, vae_train, world
from raydiance.models.tiny.team import Team


def run(out: Path, *args: str) -> dict[str, float]:
    """Train for next to no time; what the run says of itself."""
    train.main(["--out", str(out), "--vae-seconds", "0.2", "--clips", "40", "--probe", "2", *args])
    record: dict[str, float] = json.loads((out.with_name(out.name + "-work") / "training.json").read_text())
    return record


@pytest.mark.slow
def test_every_stage_runs_and_resumes(tmp_path: Path) -> None:
    out = tmp_path / "checkpoint"
    encoder = tmp_path / "checkpoint-work/vae/diffusion_pytorch_model.safetensors"
    first = run(out, "--seconds", "0.2", "--decoder-seconds", "0.2", "--workers", "1")
    pipe = export.load(out)
    assert np.isfinite(pipe.vae.config.latents_std).all()
    prompts = evaluate.draw_prompts(evaluate.splits()[0], 2, seed=0)
    assert evaluate.generate(pipe, prompts, num_inference_steps=2).shape == (2, 9, 32, 32, 3)
    trained = encoder.read_bytes()
    longer = str(first["seconds"] + 1.0)
    second = run(out, "--seconds", longer, "--decoder-seconds", "0", "--workers", "1", "--resume")
    assert second["steps"] > first["steps"]
    assert encoder.read_bytes() == trained
    before, after = pipe.transformer.state_dict(), export.load(out).transformer.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.slow
def test_two_processes_train_together(tmp_path: Path) -> None:
    record = run(tmp_path / "checkpoint", "--seconds", "0.2", "--decoder-seconds", "0", "--workers", "2")
    assert record["workers"] == 2
    assert record["steps"] >= 1


@pytest.mark.slow
def test_resuming_restores_everything(tmp_path: Path) -> None:
    options = train.Options(
        out=tmp_path / "out",
        work=tmp_path,
        vae_seconds=0,
        decoder_seconds=0,
        seconds=100,
        clips=24,
        seed=0,
        export_every=100,
        probe=2,
        workers=1,
        resume=True,
    )
    vae = vae_train.build(train.Z_DIM).eval()
    clips, specs = latents.encode(vae, options.clips, seed=0)
    straight = train.Trainer(options, Team(), vae, clips, specs)
    straight.train_step()
    straight.save()
    resumed = train.Trainer(options, Team(), vae, clips, specs)
    resumed.restore()
    assert resumed.step == straight.step == 1
    assert straight.train_step() == pytest.approx(resumed.train_step(), rel=1e-4)
    for one, other in zip(straight.params, resumed.params, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_latent_cache_round_trip(tmp_path: Path) -> None:
    vae = vae_train.build(train.Z_DIM).eval()
    clips, specs = latents.encode(vae, 20, seed=0)
    assert clips.mean((0, 2, 3, 4)).abs().max() < 1e-3
    latents.save(tmp_path / "cache.safetensors", clips, specs)
    read, read_specs = latents.load(tmp_path / "cache.safetensors")
    torch.testing.assert_close(read, clips, rtol=1e-2, atol=1e-2)
    assert read_specs == specs
    assert not any(world.is_held_out(spec) for spec in specs)


def test_decoding_with_gradients_equals_the_vaes_own() -> None:
    vae = vae_train.build(4).eval()
    z = torch.randn(1, 4, 3, 4, 4)
    torch.testing.assert_close(vae_train.decode(vae, z).clamp(-1, 1), vae.decode(z).sample)


def test_given_first_frame_has_no_loss() -> None:
    torch.manual_seed(0)
    transformer = dit.build_transformer(4)
    z, noise, text = torch.randn(2, 4, 3, 4, 4), torch.randn(2, 4, 3, 4, 4), torch.zeros(2, 24, 64)
    loss = dit.flow_loss(transformer, z, noise, torch.tensor([0.3, 0.9]), text, keep_first=True)
    torch.testing.assert_close(loss, (noise - z)[:, :, 1:].square().mean())  # it starts as the zero velocity


def test_per_token_timesteps_equal_one_timestep_for_all() -> None:
    torch.manual_seed(0)
    transformer = dit.build_transformer(4).eval()
    nn.init.normal_(transformer.proj_out.weight)
    z, text = torch.randn(2, 4, 3, 4, 4), torch.randn(2, 24, 64)
    with torch.no_grad():
        one = transformer(z, torch.tensor([300.0, 700.0]), text).sample
        each = transformer(z, torch.tensor([300.0, 700.0])[:, None].expand(2, 12), text).sample
    torch.testing.assert_close(one, each, rtol=1e-4, atol=1e-4)


def test_captions_encode_as_the_pipeline_does() -> None:
    torch.manual_seed(0)
    words = tokenizer.build()
    text_encoder = dit.build_text_encoder(words).eval()
    pipe = export.pipeline(words, text_encoder, vae_train.build(4), dit.build_transformer(4))
    captions = ["a red circle moves left", "", "the small blue square"]
    theirs = pipe.encode_prompt(captions, do_classifier_free_guidance=False, max_sequence_length=24)[0]
    torch.testing.assert_close(dit.encode_text(text_encoder, words, captions), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 7), (7, 3), (63, 64)], ids=str)
def test_orthogonalized_matrices_are_nearly_orthogonal(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(1, min(shape), max(shape))
    singular = torch.linalg.svdvals(optim.orthogonalize(matrix))
    assert singular.min() > 0.3
    assert singular.max() < 1.4


@pytest.mark.parametrize("features", [(64, 63), (127, 64)], ids=str)
def test_bf16_linear_matches_float32(features: tuple[int, int]) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(*features)
    fast = nn.Sequential(copy.deepcopy(plain))
    optim.use_bf16_linears(fast, min_features=1)
    assert type(fast[0]) is optim.LinearBF16
    x = torch.randn(5, 3, features[0], requires_grad=True)
    y = x.detach().clone().requires_grad_()
    plain(x).square().sum().backward()
    fast(y).square().sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    assert (y.grad - x.grad).norm() / x.grad.norm() < 1e-2
    assert (fast[0].weight.grad - plain.weight.grad).norm() / plain.weight.grad.norm() < 1e-2
    with torch.no_grad():
        torch.testing.assert_close(fast(x), plain(x))


def test_muon_takes_no_closure() -> None:
    with pytest.raises(ValueError, match="closure"):
        optim.Muon([nn.Parameter(torch.zeros(2, 2))], lr=0.1).step(lambda: 0.0)
