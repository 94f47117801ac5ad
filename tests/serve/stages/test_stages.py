"""The stages as plain classes, without a cluster: what they count, cache and yield."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import torch
from tests.checkpoints import save_wan

from raydiance.models.spec import Spec
from raydiance.serve.config import DenoiserConfig, ModelConfig, TextEncoderConfig
from raydiance.serve.stages import refs, reporter
from raydiance.serve.stages.denoiser import Denoiser
from raydiance.serve.stages.messages import Checkpointed, Denoised, Previewed, Stepped, Work, preview_steps
from raydiance.serve.stages.text_encoder import TextEncoder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return ModelConfig(path=str(save_wan(tmp_path_factory.mktemp("wan"))), name="m")


@pytest.fixture(autouse=True)
def _by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster here: what is put is handed over as it is."""
    monkeypatch.setattr(refs, "put", lambda value, loop: value)
    torch.set_num_threads(1)


def encoder(model: ModelConfig, **options: Any) -> TextEncoder:
    return TextEncoder(model, TextEncoderConfig(**options), "cpu")


async def texts(stage: TextEncoder, *prompts: str) -> list[torch.Tensor]:
    encoded = await stage.encode(list(prompts))
    return [e["prompt_embeds"] for e in encoded.embeddings]  # type: ignore[attr-defined]


async def test_texts_that_come_together_are_encoded_together(model: ModelConfig) -> None:
    stage = encoder(model)
    together = await asyncio.gather(*[texts(stage, f"a red ball {'over ' * i}") for i in range(4)])
    assert (await stage.stats())["batches"] == 1
    for i, [embedding] in enumerate(together):
        [single] = await texts(encoder(model), f"a red ball {'over ' * i}")
        assert (embedding - single).abs().max() <= 1e-6


async def test_a_text_is_encoded_once(model: ModelConfig) -> None:
    stage = encoder(model)
    await asyncio.gather(*[texts(stage, "a ball", "") for _ in range(5)])
    assert await stage.stats() == {"hits": 8, "misses": 2, "batches": 1, "size": 2}
    await texts(stage, "a ball")
    assert (await stage.stats())["hits"] == 9


async def test_the_cache_forgets_what_was_used_least_recently(model: ModelConfig) -> None:
    stage = encoder(model, cache_entries=2)
    for prompt in ("a", "the", "a", "red", "a"):
        await texts(stage, prompt)
    assert await stage.stats() == {"hits": 2, "misses": 3, "batches": 3, "size": 2}
    await texts(stage, "the")
    assert (await stage.stats())["misses"] == 4


async def test_without_a_cache_nothing_is_kept(model: ModelConfig) -> None:
    stage = encoder(model, cache_entries=0)
    await texts(stage, "a")
    await texts(stage, "a")
    assert await stage.stats() == {"hits": 0, "misses": 2, "batches": 2, "size": 0}


async def test_a_failure_is_told_to_its_batch_and_not_remembered(model: ModelConfig) -> None:
    stage = encoder(model)
    bad: Any = 7  # no text
    results = await asyncio.gather(stage.encode([bad]), stage.encode(["a"]), return_exceptions=True)
    assert any(isinstance(r, Exception) for r in results)
    [embedding] = await texts(stage, "a")
    assert embedding.isfinite().all()
    with pytest.raises((AttributeError, TypeError)):
        await stage.encode([bad])


@pytest.fixture
def stage(model: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Denoiser]:
    monkeypatch.setattr(reporter, "CHECKPOINT_SHARE", float("inf"))  # as often as it is said
    made = Denoiser(model, DenoiserConfig(num_threads=1, progress_interval_s=0, checkpoint_interval_s=1e-9), "cpu")
    yield made
    made._loop.stop()


def spec(steps: int = 8, seed: int = 0) -> Spec:
    return Spec("m", "text-to-video", "a red ball", 32, 48, 5, steps, 3.0, seed)


async def run(stage: Denoiser, model: ModelConfig, work: Work) -> AsyncIterator[Any]:
    encoded = await encoder(model).encode([work.spec.prompt, work.spec.negative_prompt])
    async for event in stage.generate(work, encoded.embeddings):  # type: ignore[arg-type]
        yield event


async def test_a_denoiser_tells_progress_previews_checkpoints_and_the_end(stage: Denoiser, model: ModelConfig) -> None:
    events = [e async for e in run(stage, model, Work("a", spec(), preview_steps=(2, 5)))]
    assert [e.step for e in events if isinstance(e, Stepped)] == list(range(1, 8))
    assert [e.preview_index for e in events if isinstance(e, Previewed)] == [0, 1]
    assert len([e for e in events if isinstance(e, Checkpointed)]) == 7
    assert isinstance(events[-1], Denoised)


async def test_a_checkpoint_goes_on_elsewhere_with_the_same_result(stage: Denoiser, model: ModelConfig) -> None:
    events = [e async for e in run(stage, model, Work("a", spec()))]
    forwards = (await stage.stats())["forwards"]
    kept = next(e for e in events if isinstance(e, Checkpointed) and e.step == 5)
    resumed = [e async for e in run(stage, model, Work("b", spec(), checkpoint=kept.data))]
    assert (await stage.stats())["forwards"] - forwards == 3  # the last three steps, and none again
    assert (resumed[-1].latents - events[-1].latents).abs().max() <= 1e-5


async def test_closing_the_stream_stops_the_work(stage: Denoiser, model: ModelConfig) -> None:
    stream = run(stage, model, Work("a", spec(steps=5000)))
    assert isinstance(await anext(stream), Checkpointed | Stepped)
    await stream.aclose()  # type: ignore[attr-defined]
    await asyncio.sleep(0.2)
    assert (await stage.stats())["active"] == 0


@pytest.mark.parametrize(("steps", "first", "count"), [(20, 0, 3), (4, 0, 3), (2, 0, 3), (1, 0, 3), (30, 15, 2)])
def test_previews_are_spread_over_the_steps_that_run(steps: int, first: int, count: int) -> None:
    chosen = preview_steps(steps, first, count)
    assert all(first < s < steps for s in chosen)
    assert len(chosen) == min(count, steps - first - 1)
    assert list(chosen) == sorted(set(chosen))
