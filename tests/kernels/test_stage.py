"""`denoiser.attention`: what the denoising stage does with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoints import save_wan
from tests.guests import save_qwen_image

from raydiance.kernels import attention
from raydiance.kernels.attention import AttentionUnavailable, naive, registry
from raydiance.models.spec import Spec
from raydiance.models.wan_attention import Processor
from raydiance.serve.config import DenoiserConfig, ModelConfig, TextEncoderConfig
from raydiance.serve.errors import ConfigError
from raydiance.serve.stages import refs
from raydiance.serve.stages.build import configured_attention
from raydiance.serve.stages.denoiser import Denoiser
from raydiance.serve.stages.guest import GuestDenoiser
from raydiance.serve.stages.messages import Denoised, Work
from raydiance.serve.stages.text_encoder import TextEncoder

SPEC = Spec("m", "text-to-video", "a red circle", 32, 48, 5, 2, 3.0, 0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return ModelConfig(path=str(save_wan(tmp_path_factory.mktemp("wan"))), name="m")


@pytest.fixture
def start(model: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Denoiser]]:
    monkeypatch.setattr(refs, "put", lambda value, loop: value)
    stages: list[Denoiser] = []

    def started(backend: str) -> Denoiser:
        config = DenoiserConfig.model_validate({"num_threads": 1, "attention": backend})
        stages.append(Denoiser(model, config, "cpu"))
        return stages[-1]

    yield started
    for stage in stages:
        stage._loop.stop()


async def latents(stage: Denoiser, model: ModelConfig) -> torch.Tensor:
    encoded = await TextEncoder(model, TextEncoderConfig(), "cpu").encode([SPEC.prompt, SPEC.negative_prompt])
    embeddings: Any = encoded.embeddings
    events = [e async for e in stage.generate(Work("a", SPEC), embeddings)]
    assert isinstance(events[-1], Denoised)
    found: Any = events[-1].latents
    return found


def processors(stage: Denoiser) -> set[type]:
    family: Any = stage._loop.fleet.rank.family
    return {type(p) for expert in family.experts for p in expert.attn_processors.values()}


async def test_a_forced_backend_is_used_for_every_block(
    start: Callable[[str], Denoiser], model: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    real = naive.attend

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr(naive, "attend", counted)
    attention._load.cache_clear()
    try:
        forced = await latents(start("naive"), model)
    finally:
        attention._load.cache_clear()
    forwards = SPEC.num_inference_steps
    assert len(calls) in (4 * forwards, 8 * forwards)  # two blocks, self- and cross-attention, guidance's branches
    own = await latents(start("auto"), model)
    assert len(calls) in (4 * forwards, 8 * forwards)
    assert (forced - own).abs().max() <= 1e-5


def test_auto_keeps_diffusers_own_on_the_cpu(start: Callable[[str], Denoiser]) -> None:
    assert Processor not in processors(start("auto"))
    assert processors(start("sdpa")) == {Processor}


@pytest.mark.parametrize(
    ("backend", "package"),
    [("flash2", "flash_attn"), ("flash3", "flash_attn_interface"), ("xformers", "xformers")],
)
def test_a_missing_one_is_refused_at_start(backend: str, package: str) -> None:
    """Before the weights are looked at."""
    config = DenoiserConfig.model_validate({"attention": backend})
    model = ModelConfig(path="tiny", name="m")
    with pytest.raises(ConfigError, match=rf"denoiser.attention={backend} for model 'm'.*{package}"):
        configured_attention(model, config, "cuda")
    with pytest.raises(ConfigError, match=package):
        Denoiser(model, config, "cpu")


def test_a_guest_refuses_a_forced_one(tmp_path: Path) -> None:
    guest = ModelConfig(path=str(save_qwen_image(tmp_path / "guest")), name="g")
    with pytest.raises(ConfigError, match=r"denoiser\.attention=sdpa: the guest 'g'"):
        GuestDenoiser(guest, DenoiserConfig(attention="sdpa"), "cpu")


async def test_requests_hear_of_heads_that_it_cannot_take(
    start: Callable[[str], Denoiser], model: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of a head is known when the first forward runs: the request fails, nothing else is used."""
    narrow = registry.Backend("torch", "", {"cpu": registry.Support(head_dims=range(1000, 1001))})
    monkeypatch.setattr(registry, "BACKENDS", {**registry.BACKENDS, "naive": narrow})
    attention._chosen.cache_clear()
    try:
        with pytest.raises(AttentionUnavailable, match="takes heads of 1000"):
            await asyncio.wait_for(latents(start("naive"), model), 60)
    finally:
        attention._chosen.cache_clear()
