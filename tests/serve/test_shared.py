"""Which models share a text encoder or a VAE, and that the right answers come out of it."""

from __future__ import annotations

import base64
import io
import json
import logging
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from tests.checkpoints import save_wan
from tests.families.kit import Case, Studio, all_models
from tests.families.wan import spec
from tests.servers import Server, free_port

from raydiance.models import registry, weights_files
from raydiance.models.options import LoadOptions
from raydiance.models.resolve import CheckpointError
from raydiance.serve import app
from raydiance.serve.app import build_app, shared
from raydiance.serve.config import Config, ModelConfig

COMPONENTS = ("tokenizer", "text_encoder", "transformer", "scheduler", "vae")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two models of the same text encoder; everything else of the second has other weights."""
    folder = tmp_path_factory.mktemp("shared")
    first, second = save_wan(folder / "first"), save_wan(folder / "second", seed=1)
    shutil.rmtree(second / "text_encoder")
    shutil.copytree(first / "text_encoder", second / "text_encoder")
    return first, second


@pytest.fixture
def pair(saved: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Copies to be changed."""
    first, second = (Path(shutil.copytree(folder, tmp_path / folder.name)) for folder in saved)
    return first, second


def key(folder: Path, stage: Any = "encode", contents: bool = True, **options: Any) -> tuple[object, ...]:
    return registry.share_key(folder, stage, LoadOptions(**options), contents=contents)


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_equal_files_give_equal_keys_and_others_do_not(pair):
    first, second = pair
    assert key(first) == key(second)
    assert key(first, "decode") != key(second, "decode")
    assert key(first, "decode", contents=False) == key(second, "decode", contents=False)  # of the same sizes
    assert key(first) != key(first, "decode")
    tokenizer = second / "tokenizer/tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"blue"', '"bleu"'))
    assert key(first, contents=False) == key(second, contents=False)
    assert key(first) != key(second)


def test_settings_of_a_stage_are_part_of_its_key(pair):
    first, second = pair
    edit(
        second / "raydiance.json", defaults=json.loads((first / "raydiance.json").read_text())["defaults"] | {"fps": 9}
    )
    edit(second / "transformer/config.json", _name_or_path="elsewhere", num_layers=2)
    assert key(first) == key(second)  # defaults are no setting, and Wan's encoder reads nothing of the transformer
    edit(second / "raydiance.json", max_sequence_length=7)
    assert key(first) != key(second)


MODELS = {model.name: model for model in all_models()}
SIBLINGS = [
    ("wan-ti2v", "wan-t2v-a14b"),
    ("flux-dev", "flux-kontext"),
    ("flux-dev", "flux-schnell"),
    ("hidream-full", "hidream-fast"),
]


@pytest.mark.parametrize(("one", "other"), SIBLINGS)
def test_siblings_of_a_family_share_what_encodes_the_same(tmp_path, one, other):
    first, second = (Path(shutil.copytree(MODELS[name].folder, tmp_path / name)) for name in (one, other))
    for source in [*first.glob("text_encoder*"), *first.glob("tokenizer*")]:
        shutil.rmtree(second / source.name, ignore_errors=True)
        shutil.copytree(source, second / source.name)
    encoders = [
        registry.load(folder, "encode", "m", LoadOptions(components=MODELS[one].components(first)))
        for folder in (first, second)
    ]
    embeddings = [encoder.encode_prompts(["a red circle", ""]) for encoder in encoders]
    for mine, its in zip(*embeddings, strict=True):
        assert mine.keys() == its.keys()
        assert all(torch.equal(mine[name], its[name]) for name in mine)
    components = MODELS[one].components(first)
    assert key(first, components=components) == key(second, components=components)
    assert key(first, "decode") != key(second, "decode")


def test_a_vae_is_shared_where_the_whole_configuration_agrees(pair):
    first, second = pair
    shutil.rmtree(second / "vae")
    shutil.copytree(first / "vae", second / "vae")
    assert key(first, "decode") == key(second, "decode")
    edit(second / "transformer/config.json", ffn_dim=64)
    assert key(first, "decode") != key(second, "decode")  # what it makes of given pictures may depend on it


def test_how_a_stage_is_loaded_is_part_of_its_key(pair, tmp_path):
    first, _ = pair
    for options in (
        {"dtype": "bfloat16"},
        {"device": "cuda"},
        {"offload": "group"},
        {"device_map": "balanced"},
        {"quantization": {"text_encoder": {"backend": "torchao"}}},
    ):
        assert key(first) != key(first, **options), options
    other = Path(shutil.copytree(first / "transformer", tmp_path / "other"))
    for options in (
        {"offload": "idle_expert"},
        {"components": {"transformer": str(other)}},
        {"quantization": {"transformer": {"backend": "torchao"}}},
    ):
        assert key(first) == key(first, **options), options


def test_a_component_from_elsewhere_counts_as_what_it_is(pair):
    first, second = pair
    elsewhere = {"components": {"vae": str(first)}}
    assert key(first, "decode") == key(second, "decode", **elsewhere)
    shutil.rmtree(second / "text_encoder")
    with pytest.raises(CheckpointError, match="no folder text_encoder/"):
        key(second)


def test_models_share_the_first_ones_deployment(saved, caplog):
    first, second = (ModelConfig(path=str(folder)) for folder in saved)
    third = ModelConfig(path=str(saved[0]), name="third")
    with caplog.at_level(logging.INFO, "ray.serve"):
        encoders = shared([first, second, third], "encode", "cpu")
        decoders = shared([first, second, third], "decode", "cpu")
    assert list(encoders.values()) == [first, first, first]
    assert list(decoders.values()) == [first, second, first]
    assert [r.message for r in caplog.records] == [
        "models first, second, third share one deployment for 'encode'",
        "models first, third share one deployment for 'decode'",
    ]


def test_one_model_is_compared_with_nothing(monkeypatch):
    monkeypatch.setattr(app, "_share_key", None)
    model = ModelConfig(path="org/not-to-be-had")
    assert shared([model], "encode", "cpu") == {"not-to-be-had": model}


def test_contents_are_read_where_sizes_agree_only(pair, monkeypatch):
    (pair[1] / "text_encoder/more.txt").touch()
    monkeypatch.setattr(weights_files, "_digest", None)
    models = [ModelConfig(path=str(folder)) for folder in pair]
    assert list(shared(models, "encode", "cpu").values()) == models


def test_a_model_that_is_not_to_be_had_here_shares_nothing(saved, monkeypatch, caplog):
    def away(path: str, revision: str | None = None) -> Path:
        raise CheckpointError(f"{path} is away")

    monkeypatch.setattr(app.resolve, "resolve", away)
    models = [ModelConfig(path=str(folder)) for folder in saved]
    with caplog.at_level(logging.WARNING, "ray.serve"):
        assert isinstance(build_app(Config(models=models)), app.Application)
    assert "model 'first' shares no stage" in caplog.text
    assert "model 'first' is taken for one of a family" in caplog.text


def picture_of(server: Server, model: str, prompt: str) -> np.ndarray:
    body = {"model": model, "prompt": prompt, "size": "48x32", "seed": 7, "num_inference_steps": 4, "guidance_scale": 3}
    body["negative_prompt"] = "a black square"
    answer = httpx.post(f"{server.url}/v1/images/generations", json=body, timeout=60).raise_for_status().json()
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(answer["data"][0]["b64_json"]))))


def pictures_alone(folder: Path, prompts: list[str]) -> dict[str, np.ndarray]:
    torch.set_num_threads(1)
    studio = Studio(*(registry.load(folder, stage, "m") for stage in ("encode", "denoise", "decode")))
    return {p: studio.frames(Case(p, spec("text-to-image", num_frames=1, prompt=p)))[0] for p in prompts}


@pytest.mark.slow
def test_one_text_encoder_serves_both(saved, tmp_path):
    port = free_port()
    config = {
        "models": [{"path": str(folder)} for folder in saved],
        "denoiser": {"num_threads": 1},
        "storage": {"database": f"sqlite:///{tmp_path}/jobs.db", "artifacts": f"{tmp_path}/artifacts"},
    }
    file = tmp_path / "raydiance.yaml"
    file.write_text(yaml.safe_dump(config))
    start = "from raydiance.serve.cli import main; main()"
    command = [sys.executable, "-c", start, "serve", "--config", str(file), "--port", str(port)]
    prompts = ["a red circle moves", "the blue square", "a red circle moves", "a black circle"]
    alone = {folder.name: pictures_alone(folder, prompts) for folder in saved}
    asked = [(folder.name, prompt) for prompt in prompts for folder in saved]
    server = Server(tmp_path, port=port, command=command)
    try:
        server.wait_ready()
        for model, prompt in asked:
            assert np.array_equal(picture_of(server, model, prompt), alone[model][prompt]), (model, prompt)
        with ThreadPoolExecutor(len(asked)) as pool:  # in batches the last bits differ
            for (model, prompt), made in zip(asked, pool.map(lambda a: picture_of(server, *a), asked), strict=True):
                assert np.abs(made.astype(int) - alone[model][prompt]).max() <= 1
        replicas = {name: len(server.pids(f"ServeReplica:raydiance:{name}")) for name in ("TextEncoder", "VAEDecoder")}
        assert replicas == {"TextEncoder": 1, "VAEDecoder": 2}
    finally:
        server.stop()
