"""The VAE stage as a plain class: a cancelled decoding stops, previews do not wait for whole videos, sound is kept."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.checkpoints import save_wan
from tests.families.ltx import MODELS as LTX
from tests.tones import loudness, pitch, tones

from raydiance.models.family import Audio
from raydiance.models.spec import Spec
from raydiance.serve import media, patience
from raydiance.serve.config import ModelConfig, load_config
from raydiance.serve.errors import Unavailable
from raydiance.serve.request import Clip, Output, Source, VideoInput
from raydiance.serve.stages.messages import Given
from raydiance.serve.stages.vae_decoder import VAEDecoder
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.job import Job

SPEC = Spec("m", "text-to-video", "a ball", 32, 32, 401, 4, 1.0, 0)
LONG, SHORT = torch.zeros(16, 100, 4, 4), torch.zeros(16, 1, 4, 4)
FRAME_S = 0.01
decoded: list[int] = []  # one entry a latent frame
HEARD = replace(SPEC, num_frames=17, fps=16, audio=True)
CLIP = Clip(width=32, height=32, num_frames=33, fps=16)
PREVIOUS_KEY = "jobs/a/inputs/0"
PREVIOUS = VideoInput(role="previous", source=Source(artifact=PREVIOUS_KEY), clip=CLIP)


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


async def test_a_store_that_is_away_is_waited_for(decoder: VAEDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_WAIT_S", 0.01)
    put, away = decoder._artifacts.put, 3

    async def flaky(key: str, data: bytes) -> None:
        nonlocal away
        away -= 1
        if away >= 0:
            raise Unavailable("the artifact store is full", code="storage_full")
        await put(key, data)

    monkeypatch.setattr(decoder._artifacts, "put", flaky)
    made = await decoder.decode(SHORT, SPEC, Output(), "jobs/a", 0)
    assert await decoder._artifacts.size(made.artifact.key) == made.artifact.size_bytes
    assert len(decoded) == 1, "it is decoded once"
    away = 1_000_000
    monkeypatch.setattr(patience, "PATIENCE_S", 0.05)
    with pytest.raises(Unavailable, match="full"):
        await decoder.decode(SHORT, SPEC, Output(), "jobs/a", 1)


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


def tone(hertz: float, num_frames: int) -> Audio:
    return tones(hertz, seconds=num_frames / HEARD.fps)


def heard(audio: Audio, start_s: float, stop_s: float) -> float:
    """The pitch between the two; 0 for silence."""
    samples = audio.samples[0, round(start_s * audio.sample_rate) : round(stop_s * audio.sample_rate)]
    return pitch(samples, audio.sample_rate) if loudness(samples) > 0.01 else 0.0


@pytest.fixture
def singer(decoder: VAEDecoder, monkeypatch: pytest.MonkeyPatch) -> VAEDecoder:
    """Its family makes 17 grey frames and a tone of 880 Hz."""

    def frames(latents: torch.Tensor, spec: Spec) -> Iterator[np.ndarray]:
        yield from np.split(np.full((17, 32, 32, 3), 128, np.uint8), [1, 9])

    def sound(latents: torch.Tensor, spec: Spec) -> Audio:
        assert threading.current_thread().name.startswith("vae")
        return tone(880, spec.num_frames)

    monkeypatch.setattr(decoder._family, "decode", frames)
    monkeypatch.setattr(decoder._family, "decode_audio", sound)
    return decoder


async def stored(tmp_path: Path, artifact_key: str) -> bytes:
    return await ArtifactStore(str(tmp_path / "artifacts")).get(artifact_key)


@pytest.mark.parametrize("format", ["mp4", "webm"])
async def test_the_sound_of_a_family_is_in_the_file(singer: VAEDecoder, tmp_path: Path, format: Any) -> None:
    made = await singer.decode(SHORT, HEARD, Output(format=format), "jobs/a", 0)
    assert set(made.timings) == {"decode_s", "decode_audio_s", "encode_file_s", "store_s"}
    assert all(s >= 0 for s in made.timings.values())
    audio = media.decode_sound(data := await stored(tmp_path, made.artifact.key))
    assert audio is not None
    assert len(media.decode_video(data)[0]) == 17
    assert audio.samples.shape[1] / audio.sample_rate == pytest.approx(17 / 16, abs=0.05)
    assert heard(audio, 0, 1) == pytest.approx(880, abs=2)
    again = await singer.decode(SHORT, HEARD, Output(format=format), "jobs/b", 0)
    assert await stored(tmp_path, again.artifact.key) == data


async def test_a_job_says_which_of_its_files_has_sound(singer: VAEDecoder, tmp_path: Path) -> None:
    sounding = await singer.decode(SHORT, HEARD, Output(), "jobs/a", 0)
    silent = await singer.decode(SHORT, replace(HEARD, audio=False), Output(), "jobs/a", 1)
    assert "decode_audio_s" not in silent.timings
    assert media.decode_sound(await stored(tmp_path, silent.artifact.key)) is None
    values: dict[str, Any] = {"id": "video_1", "kind": "video", "model": "m", "request": {}, "created_at": 0}
    job = Job(**values, specs=[HEARD.to_dict()] * 2, artifacts=[sounding.artifact, silent.artifact])
    assert [o["has_audio"] for o in job.public()["outputs"]] == [True, False]


async def test_a_family_that_makes_no_sound_where_it_should(
    singer: VAEDecoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(singer._family, "decode_audio", lambda latents, spec: None)
    with pytest.raises(RuntimeError, match="family 'wan' of model 'm' made no sound"):
        await singer.decode(SHORT, HEARD, Output(), "jobs/a", 0)
    assert not (tmp_path / "artifacts" / "jobs").exists()


@pytest.mark.parametrize("format", ["mp4", "webm"])
@pytest.mark.parametrize("is_silent", [False, True], ids=["sound before", "silence before"])
async def test_new_sound_follows_that_of_the_video_before_it(
    singer: VAEDecoder, tmp_path: Path, format: Any, is_silent: bool
) -> None:
    """33 frames and 17, one of them shared: 49."""
    before = None if is_silent else tone(440, 33)
    await store_previous(tmp_path, media.encode_video([black(33)], 16, format, audio=before))
    made = await singer.decode(SHORT, HEARD, Output(format=format), "jobs/a", 0, PREVIOUS)
    assert (made.artifact.has_audio, made.artifact.num_frames) == (True, 49)
    data = await stored(tmp_path, made.artifact.key)
    frames, _ = media.decode_video(data)
    levels = frames.mean(axis=(1, 2, 3))
    assert len(frames) == 49
    assert (levels[:33] < 10).all()
    assert (levels[33:] > 100).all()
    audio = media.decode_sound(data)
    assert audio is not None
    assert audio.samples.shape[1] / audio.sample_rate == pytest.approx(49 / 16, abs=0.05)
    assert heard(audio, 0, 31 / 16) == pytest.approx(0 if is_silent else 440, abs=2)
    assert heard(audio, 34 / 16, 49 / 16) == pytest.approx(880, abs=2)


async def test_without_sound_what_goes_on_from_a_video_is_silent(singer: VAEDecoder, tmp_path: Path) -> None:
    await store_previous(tmp_path, media.encode_video([black(33)], 16, audio=tone(440, 33)))
    made = await singer.decode(SHORT, replace(HEARD, audio=False), Output(), "jobs/a", 0, PREVIOUS)
    assert not made.artifact.has_audio
    assert media.decode_sound(await stored(tmp_path, made.artifact.key)) is None


async def test_damaged_sound_is_found_before_anything_is_denoised(singer: VAEDecoder, tmp_path: Path) -> None:
    data = media.encode_video([black(33)], 16, "webm", audio=tone(440, 33))
    await store_previous(tmp_path, data.replace(b"A_OPUS", b"A_NONE"))  # of a codec that there is not
    given = [Given("first_frame", PREVIOUS_KEY)]
    going_on = replace(HEARD, task="image-to-video")
    assert await singer.encode_inputs(replace(going_on, audio=False), given)
    with pytest.raises(ValueError, match="damaged"):
        await singer.encode_inputs(going_on, given)


async def store_previous(tmp_path: Path, data: bytes) -> None:
    await ArtifactStore(str(tmp_path / "artifacts")).put(PREVIOUS_KEY, data)


def black(num_frames: int) -> np.ndarray:
    return np.zeros((num_frames, 32, 32, 3), np.uint8)


async def test_a_video_of_ltx_with_its_sound(tmp_path: Path) -> None:
    [model] = [m for m in LTX if m.name == "ltx"]
    [case] = [c for c in model.cases if c.id == "t2v"]
    config = load_config({"storage.artifacts": str(tmp_path / "artifacts"), "denoiser.num_threads": 1})
    stage = VAEDecoder(ModelConfig(path=str(model.folder), name="ltx"), config, "cpu")
    latents = model.studio.latents(case)
    made = await stage.decode(latents, case.spec, Output(), "jobs/a", 0)
    data, spec = await stored(tmp_path, made.artifact.key), case.spec
    frames, fps = media.decode_video(data)
    assert (frames.shape, fps) == ((spec.num_frames, spec.height, spec.width, 3), spec.fps)
    expected, audio = model.studio.decoder.decode_audio(latents, spec), media.decode_sound(data)
    assert audio is not None
    assert expected is not None
    assert (len(audio.samples), audio.sample_rate) == (len(expected.samples), expected.sample_rate)
    assert audio.samples.shape[1] / audio.sample_rate == pytest.approx(spec.num_frames / fps, abs=0.05)
    assert made.artifact.has_audio
