"""`raydiance models check`: what it says of whole, damaged and absent checkpoints, each in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tests.checkpoints import save_wan
from typer.testing import CliRunner, Result

from raydiance.serve.cli import app
from raydiance.serve.config import load_config

WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
LOCAL_HUB = "http://127.0.0.1:9"


def check(*args: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["models", "check", *map(str, args)])
    assert result.exit_code == code, result.output
    assert "unexpected" not in result.stderr
    return result


def refused(*args: str | Path, code: int = 2) -> str:
    """The one line on stderr."""
    result = check(*args, code=code)
    [line] = result.stderr.splitlines()
    return line


def rows(result: Result) -> dict[str, str]:
    return dict(line.split("\t") for line in result.stdout.splitlines())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_wan(tmp_path_factory.mktemp("checkpoint") / "wan")


def test_a_whole_folder(whole: Path) -> None:
    told = rows(check(whole, "--size", "64x48", "--frames", "9", "--steps", "3", "--gpu", "24"))
    assert told["family"] == "wan"
    assert told["checked"].startswith("3 components")
    assert told["request"] == "text-to-video, 64x48, 9 frames, 3 steps"
    assert told["tokens"] == "36, 6 rows of forwards"  # 3 frames of 3x4 tokens, two branches
    assert told["encode"].startswith("5,536 parameters")
    assert told["cards of 24 GB"].startswith("1 GPU")


def _in_shards(folder: Path) -> Path:
    """The last of two."""
    file = folder / WEIGHTS
    weights = load_file(file)
    name = "diffusion_pytorch_model-0000{}-of-00002.safetensors"
    shard_of = {key: 1 + i % 2 for i, key in enumerate(weights)}
    for shard in (1, 2):
        part = {k: v for k, v in weights.items() if shard_of[k] == shard}
        save_file(part, file.with_name(name.format(shard)))
    index = {"metadata": {}, "weight_map": {k: name.format(shard) for k, shard in shard_of.items()}}
    file.with_name(f"{file.name}.index.json").write_text(json.dumps(index))
    file.unlink()
    return file.with_name(name.format(2))


def _without_a_shard(folder: Path) -> None:
    _in_shards(folder).unlink()


def _of_another_shape(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    weights["proj_out.weight"] = torch.zeros(3, 5)
    save_file(weights, folder / WEIGHTS)


def _of_another_class(folder: Path) -> None:
    config = folder / "transformer" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"_class_name": "FluxTransformer2DModel"}))


def _pickled(folder: Path) -> None:
    file = folder / WEIGHTS
    torch.save(load_file(file), file.with_suffix(".bin"))
    file.unlink()


def _of_another_pipeline(folder: Path) -> None:
    index = folder / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"_class_name": "NoSuchPipeline"}))


def _empty(folder: Path) -> None:
    (folder / "model_index.json").unlink()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_without_a_shard, "lacks the shard diffusion_pytorch_model-00002-of-00002.safetensors"),
        (_of_another_shape, "transformer has shapes: proj_out.weight is 3x5 and not"),
        (_of_another_class, "holds a FluxTransformer2DModel; model_index.json says WanTransformer3DModel"),
        (_pickled, "no *.safetensors: found diffusion_pytorch_model.bin, which may run code when loaded"),
        (_of_another_pipeline, "is for NoSuchPipeline, which is not supported"),
        (_empty, "has no model_index.json; a model is a folder in diffusers' format"),
    ],
)
def test_a_damaged_folder(damage: Callable[[Path], None], says: str, tmp_path: Path) -> None:
    folder = save_wan(tmp_path / "wan")
    damage(folder)
    assert says in refused(folder)


def test_weights_in_shards(tmp_path: Path) -> None:
    folder = save_wan(tmp_path / "wan")
    _in_shards(folder)
    assert rows(check(folder))["checked"].startswith("3 components")


def test_an_empty_folder(tmp_path: Path) -> None:
    assert "has no model_index.json" in refused(tmp_path)


def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", LOCAL_HUB)
    for command in ("check", "show"):
        result = CliRunner().invoke(app, ["models", command, "org/no-such-model"])
        assert result.exit_code == 2
        [line] = result.stderr.splitlines()
        assert "org/no-such-model is no local folder, and the hub does not give it" in line


def test_what_is_neither_folder_nor_profile() -> None:
    assert "nope is neither a folder nor a Hugging Face id" in refused("nope")


@pytest.mark.slow
def test_a_profile_that_fits_and_one_that_does_not() -> None:
    fits = check("wan2.2-t2v-a14b", "--size", "832x480", "--gpu", "80")
    assert rows(fits)["weights"] == "Wan-AI/Wan2.2-T2V-A14B-Diffusers"
    assert "832x480" in rows(fits)["request"]
    assert "GPU" in rows(fits)["cards of 80 GB"]
    assert "checked" not in rows(fits)
    does_not = check("wan2.2-t2v-a14b", "--gpu", "4", code=1)
    assert rows(does_not)["cards of 4 GB"] == "does not fit"
    assert does_not.stderr.splitlines() == ["error: it does not fit cards of 4 GB"]


@pytest.mark.slow
def test_a_configuration_for_cards_that_it_fits() -> None:
    config = yaml.safe_load(check("wan2.2-t2v-a14b", "--gpu", "80", "--config").stdout)
    assert config["models"][0]["path"] == "Wan-AI/Wan2.2-T2V-A14B-Diffusers"
    assert load_config(config).denoiser.num_gpus > 0
    none = check("wan2.2-t2v-a14b", "--gpu", "4", "--config", code=1)
    assert (none.stdout, none.stderr) == ("", "error: it does not fit cards of 4 GB\n")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--size", "big"], "--size big must be WIDTHxHEIGHT"),
        (["--size", "33x32"], "width=33 must be a multiple of 16"),
        (["--frames", "6"], "num_frames=6 must be 4k+1"),
        (["--steps", "100000"], "num_inference_steps=100000 must be"),
        (["--dtype", "int8"], "--dtype int8 is not one of float32, bfloat16, float16"),
        (["--component", "vae"], "--component vae must be NAME=FOLDER"),
        (["--component", "unet=tiny"], "components.unet"),
        (["--component", "vae=nope"], "nope is neither a folder"),
        (["--config"], "--config needs --gpu"),
        (["--config", "--gpu", "24"], "--config is for profiles"),
    ],
)
def test_wrong_values(whole: Path, options: list[str], says: str) -> None:
    assert says in refused(whole, *options)


def test_typer_refuses_a_card_without_memory(whole: Path) -> None:
    assert "--gpu" in check(whole, "--gpu", "0", code=2).stderr


def test_profiles_are_listed() -> None:
    result = CliRunner().invoke(app, ["models", "profiles"])
    assert "ltx-2.3\tdiffusers/LTX-2.3-Diffusers" in result.stdout
