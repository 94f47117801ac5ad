"""The VAE stage as a plain class: a cancelled decoding stops, and previews do not wait for whole videos."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.checkpoints import save_wan

from raydiance.models.spec import Spec
from raydiance.serve.config import ModelConfig, load_config
from raydiance.serve.request import Output
from raydiance.serve.stages.vae_decoder import VAEDecoder

SPEC = Spec("m", "text-to-video", "a ball", 32, 32, 401, 4, 1.0, 0)
LONG, SHORT = torch.zeros(16, 100, 4, 4), torch.zeros(16, 1, 4, 4)
FRAME_S = 0.01
decoded: list[int] = []  # one entry a latent frame


@pytest.fixture
def decoder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> VAEDecoder:
    config = load_config({"storage.artifacts": str(tmp_path / "artifacts"), "denoiser.num_threads": 1})
    model = ModelConfig(path=str(save_wan(tmp_path_factory.mktemp("wan"))), name="m")
    made = VAEDecoder(model, config, "cpu")

    def frames(latents: torch.Tensor, spec: Spec) -> Iterator[np.ndarray]:
        for _ in range(latents.shape[1]):
            decoded.append(latents.shape[1])
            time.sleep(FRAME_S)
            yield np.zeros((4, 32, 32, 3), np.uint8)

    decoded.clear()
    monkeypatch.setattr(made._family, "decode", frames)
    return made


async def test_a_cancelled_decoding_stops_and_writes_nothing(decoder: VAEDecoder, tmp_path: Path) -> None:
    decoding = asyncio.ensure_future(decoder.decode(LONG, SPEC, Output(), "jobs/a", 0))
    await asyncio.sleep(5 * FRAME_S)
    decoding.cancel()
    await asyncio.wait({decoding})
    await asyncio.sleep(5 * FRAME_S)
    stopped_at = len(decoded)
    await asyncio.sleep(10 * FRAME_S)
    assert 0 < len(decoded) == stopped_at < 50
    assert not (tmp_path / "artifacts" / "jobs").exists()


async def test_a_preview_waits_for_no_whole_video(decoder: VAEDecoder) -> None:
    decoding = asyncio.ensure_future(decoder.decode(LONG, SPEC, Output(), "jobs/a", 0))
    await asyncio.sleep(2 * FRAME_S)
    assert (await decoder.preview(SHORT, SPEC))["format"] == "webp"
    assert not decoding.done()
    assert len(decoded) < 50
    decoding.cancel()
