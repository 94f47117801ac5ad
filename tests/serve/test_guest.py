"""Guests as a stage, behind a dispatcher, and over HTTP beside each other."""

from __future__ import annotations

import asyncio
import base64
import io
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
import yaml
from PIL import Image
from tests.guests import save_ltx_video, save_qwen_image, save_sana
from tests.servers import Server, free_port

from raydiance.models import registry
from raydiance.models.spec import Spec
from raydiance.serve import app, media
from raydiance.serve.config import Config, DenoiserConfig, ModelConfig
from raydiance.serve.samples import default_spec
from raydiance.serve.stages import refs
from raydiance.serve.stages.guest import GuestDenoiser
from raydiance.serve.stages.messages import Denoised, StageEvent, Stepped, Work

SAVED = {"sana": save_sana, "qwen": save_qwen_image, "ltx": save_ltx_video}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("guests")
    return {name: save(folder / name) for name, save in SAVED.items()}


@pytest.fixture
def stage(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> GuestDenoiser:
    monkeypatch.setattr(refs, "put", lambda value, loop: value)  # no cluster here: handed over as it is
    config = DenoiserConfig(num_threads=1, progress_interval_s=0)
    return GuestDenoiser(ModelConfig(path=str(folders["qwen"]), name="g"), config, "cpu")


def spec_of(stage: GuestDenoiser, **values: Any) -> Spec:
    return replace(default_spec(stage._guest.card, 4), prompt="a red circle", **values)


async def events(stage: GuestDenoiser, spec: Spec, **work: Any) -> list[StageEvent]:
    return [e async for e in stage.generate(Work("w", spec, **work), [])]


async def test_progress_and_the_end(stage: GuestDenoiser) -> None:
    spec = spec_of(stage)
    *steps, end = await events(stage, spec)
    assert steps == [Stepped(i, 4) for i in (1, 2, 3, 4)]
    assert isinstance(end, Denoised)
    alone = stage._guest.generate(spec, None, lambda *_: None)
    assert torch.equal(end.latents, alone)  # type: ignore[arg-type]
    assert (await stage.stats())["active"] == 0


async def test_progress_is_coalesced(stage: GuestDenoiser) -> None:
    stage._config = DenoiserConfig(progress_interval_s=60)
    assert [type(e) for e in await events(stage, spec_of(stage))] == [Denoised]


async def test_requests_run_one_by_one(stage: GuestDenoiser) -> None:
    specs = [spec_of(stage, seed=seed) for seed in range(3)]
    ends = [e[-1] for e in await asyncio.gather(*(events(stage, spec) for spec in specs))]
    for spec, end in zip(specs, ends, strict=True):
        assert isinstance(end, Denoised)
        assert torch.equal(end.latents, stage._guest.generate(spec, None, lambda *_: None))  # type: ignore[arg-type]


async def first(stage: GuestDenoiser, spec: Spec) -> AsyncIterator[StageEvent]:
    stream = stage.generate(Work("long", spec), [])
    assert await anext(stream) == Stepped(1, spec.num_inference_steps)
    return stream


async def idle(stage: GuestDenoiser) -> None:
    """Until the thread has nothing to do."""
    await asyncio.get_running_loop().run_in_executor(stage._thread, time.sleep, 0)


async def test_a_cancelled_one_stops_within_a_step_and_a_waiting_one_never_starts(stage: GuestDenoiser) -> None:
    taken = asyncio.Event()

    def slow(step: int, num_steps: int) -> None:
        told(step, num_steps)
        asyncio.run_coroutine_threadsafe(taken.wait(), loop).result(30)  # until the stream was left

    loop, generate = asyncio.get_running_loop(), stage._guest.generate

    def held(spec: Spec, inputs: Any, on_step: Any) -> Any:
        nonlocal told
        told = on_step
        return generate(spec, inputs, slow)

    told: Any = None
    stage._guest.generate = held  # type: ignore[method-assign]
    stream = await first(stage, spec_of(stage, num_inference_steps=100))
    waiting = asyncio.ensure_future(events(stage, spec_of(stage)))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await stream.aclose()  # type: ignore[attr-defined]
    taken.set()
    await idle(stage)
    assert (await stage.stats())["steps"] == 2  # the one that was told, and the one under way
    assert (await stage.stats())["active"] == 0
    stage._guest.generate = generate  # type: ignore[method-assign]
    assert isinstance((await events(stage, spec_of(stage)))[-1], Denoised)


async def test_a_failure_is_its_own(stage: GuestDenoiser) -> None:
    with pytest.raises(RuntimeError, match="frames of"):
        await events(stage, spec_of(stage, height=40))
    with pytest.raises(ValueError, match="no embeddings, previews or checkpoints"):
        await events(stage, spec_of(stage), preview_steps=(2,))
    assert isinstance((await events(stage, spec_of(stage)))[-1], Denoised)


def test_the_application_gives_a_guest_no_text_encoder(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[tuple[str, dict[str, Any]]] = []
    deployment = app._deployment

    def record(cls: type, **options: Any) -> Any:
        bound.append((options["name"], options["ray_actor_options"]))
        return deployment(cls, **options)

    monkeypatch.setattr(app, "_deployment", record)
    models = [ModelConfig(path=str(folders["sana"])), ModelConfig(path="tiny")]
    gpu = {"num_gpus": 1}
    app.build_app(Config(models=models, denoiser=gpu, vae_decoder=gpu))  # type: ignore[arg-type]
    names = [name for name, _ in bound]
    assert [n for n in names if n.endswith("-sana")] == ["GuestDenoiser-sana", "VAEDecoder-sana", "Dispatcher-sana"]
    assert "TextEncoder-tiny" in names
    assert [dict(bound)[n]["num_gpus"] for n in ("GuestDenoiser-sana", "VAEDecoder-sana", "VAEDecoder-tiny")] == [
        1,
        0,
        1,
    ]


def test_of_a_hub_id_only_the_index_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def download(repo_id: str, name: str, revision: str | None = None) -> str:
        asked.append((repo_id, name, revision))
        if repo_id == "org/away":
            raise OSError("no connection")
        (tmp_path / name).write_text('{"_class_name": "SanaPipeline"}')
        return str(tmp_path / name)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert app.is_guest(ModelConfig(path="org/sana", revision="v1"))
    assert not app.is_guest(ModelConfig(path="org/away"))
    assert asked == [("org/sana", "model_index.json", "v1"), ("org/away", "model_index.json", None)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*(videos|Videos|Sora).*:DeprecationWarning")
def test_guests_beside_each_other_over_http(folders: dict[str, Path], tmp_path: Path) -> None:
    port = free_port()
    config = {
        "models": [{"path": str(folder)} for folder in folders.values()],
        "denoiser": {"num_threads": 1, "progress_interval_s": 0},
        "storage": {"database": f"sqlite:///{tmp_path}/jobs.db", "artifacts": f"{tmp_path}/artifacts"},
    }
    file = tmp_path / "raydiance.yaml"
    file.write_text(yaml.safe_dump(config))
    start = "from raydiance.serve.cli import main; main()"
    command = [sys.executable, "-c", start, "serve", "--config", str(file), "--port", str(port)]
    server = Server(tmp_path, port=port, command=command)
    try:
        server.wait_ready()
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            check_models(client)
            for name in ("sana", "qwen"):
                check_pictures(client, name, folders[name])
            check_refusals(client)
            check_video(client)
            check_cancelling(client)
        assert not server.pids("ServeReplica:raydiance:TextEncoder")
    finally:
        server.stop()


def check_models(client: openai.OpenAI) -> None:
    views = {model.id: model.model_dump() for model in client.models.list()}
    assert set(views) == set(SAVED)
    for view in views.values():
        assert view["guest"]
        assert view["features"] == {"step_batching": False, "preview": False, "checkpoint": False, "cancel": True}


def check_pictures(client: openai.OpenAI, name: str, folder: Path) -> None:
    card = registry.card(folder, name)
    guest: Any = registry.load(folder, "denoise", name)
    extra = {"seed": 7, "num_inference_steps": 3, "negative_prompt": "a black square"}
    made = client.images.generate(model=name, prompt="a red circle", n=2, response_format="b64_json", extra_body=extra)
    assert made.data is not None
    for i, item in enumerate(made.data):
        values = {"prompt": "a red circle", "negative_prompt": "a black square", "seed": 7 + i}
        wanted = guest.generate(replace(default_spec(card, 3), **values), None, lambda *_: None)[0]
        got = np.asarray(Image.open(io.BytesIO(base64.b64decode(str(item.b64_json)))))
        assert np.array_equal(got, wanted.numpy())


def check_refusals(client: openai.OpenAI) -> None:
    for name, values, field in (
        ("sana", {"true_cfg_scale": 2.0}, "true_cfg_scale"),
        ("qwen", {"guidance_scale": 2.0}, "guidance_scale"),
        ("sana", {"strength": 0.5}, "strength"),
        ("sana", {"size": "40x512"}, "size"),
    ):
        with pytest.raises(openai.BadRequestError) as error:
            client.images.generate(model=name, prompt="a", extra_body=values)
        assert error.value.param == field
    with pytest.raises(openai.BadRequestError) as error:
        list(client.images.generate(model="sana", prompt="a", stream=True, partial_images=1))
    assert "runs as a guest and shows none" in error.value.message


def check_video(client: openai.OpenAI) -> None:
    data = io.BytesIO()
    Image.new("RGB", (64, 32), (200, 30, 30)).save(data, "PNG")
    video = client.videos.create_and_poll(
        model="ltx",
        prompt="a red circle",
        input_reference=("first.png", data.getvalue()),
        extra_body={"seed": 1},
    )
    assert (video.status, video.progress) == ("completed", 100)
    frames, fps = media.decode_video(client.videos.download_content(video.id).read())
    assert (frames.shape, fps) == ((9, 32, 64, 3), 8)


def check_cancelling(client: openai.OpenAI) -> None:
    body = {"model": "qwen", "prompt": "a", "num_frames": 1}
    long = {**body, "num_inference_steps": 200, "n": 4, "width": 960, "height": 960}
    job = client.post("/jobs", body=long, cast_to=dict[str, Any])
    path = f"/jobs/{job['id']}"
    deadline = time.monotonic() + 60
    while client.get(path, cast_to=dict[str, Any])["progress"] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    next_job = client.post("/jobs", body={**body, "num_inference_steps": 1}, cast_to=dict[str, Any])
    next_path = f"/jobs/{next_job['id']}"
    assert client.get(next_path, cast_to=dict[str, Any])["status"] == "queued"
    began = time.monotonic()
    assert client.post(f"{path}/cancel", cast_to=dict[str, Any])["status"] == "cancelled"
    while client.get(next_path, cast_to=dict[str, Any])["status"] != "completed":
        assert time.monotonic() - began < 30
        time.sleep(0.05)
