"""`raydiance models check` on checkpoints good and broken: each answer is right, and clear."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tests.checkpoints import save_wan
from typer.testing import CliRunner

from raydiance.serve.cli import app
from raydiance.serve.config import load_config


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_wan(tmp_path_factory.mktemp("check") / "wan")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "wan"))


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["models", *arguments])
    return done.exit_code, done.stdout, done.stderr


def refusal(*arguments: str) -> str:
    """The one line that a broken checkpoint ends with."""
    code, out, err = run("check", *arguments)
    assert (code, out) == (2, "")
    [line] = err.strip().splitlines()
    return line.removeprefix("error: ")


def weights(folder: Path, component: str) -> Path:
    [file] = (folder / component).glob("*.safetensors")
    return file


def test_a_good_folder(folder: Path) -> None:
    code, out, _ = run("check", str(folder), "--size", "64x48", "--frames", "9", "--steps", "6")
    assert code == 0
    rows = dict(line.split("\t") for line in out.splitlines())
    assert rows["checked"].startswith("3 components")
    assert rows["request"] == "text-to-video, 64x48, 9 frames, 6 steps"
    assert rows["tokens"] == "36, 12 rows of forwards"  # 3 frames of 3x4 tokens, two branches
    assert rows["encode"].startswith("5,536 parameters")
    assert rows["cards of 24 GB"].startswith("1 GPU,")


def test_a_missing_shard(folder: Path) -> None:
    file = weights(folder, "transformer")
    tensors = load_file(file)
    file.unlink()
    names = sorted(tensors)
    for i, part in enumerate((names[:10], names[10:]), 1):
        save_file(
            {n: tensors[n] for n in part}, folder / f"transformer/diffusion_pytorch_model-0000{i}-of-00002.safetensors"
        )
    index = {n: f"diffusion_pytorch_model-0000{1 if n in names[:10] else 2}-of-00002.safetensors" for n in names}
    (folder / "transformer/diffusion_pytorch_model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": index})
    )
    assert run("check", str(folder))[0] == 0
    (folder / "transformer/diffusion_pytorch_model-00002-of-00002.safetensors").unlink()
    assert "diffusion_pytorch_model-00002-of-00002.safetensors" in refusal(str(folder))


def test_a_wrong_shape(folder: Path) -> None:
    file = weights(folder, "transformer")
    save_file({**load_file(file), "proj_out.bias": torch.zeros(3)}, file, metadata={"format": "pt"})
    assert "transformer has shapes: proj_out.bias is 3 and not 16" in refusal(str(folder))


def test_a_wrong_class(folder: Path) -> None:
    config = folder / "transformer/config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "_class_name": "FluxTransformer2DModel"}))
    assert "holds a FluxTransformer2DModel; model_index.json says WanTransformer3DModel" in refusal(str(folder))


def test_pickles_only(folder: Path) -> None:
    file = weights(folder, "vae")
    torch.save({}, file.with_suffix(".bin"))
    file.unlink()
    assert "may run code when loaded" in refusal(str(folder))


def test_an_empty_folder(tmp_path: Path) -> None:
    assert "has no model_index.json" in refusal(str(tmp_path))


def test_a_pipeline_that_nobody_knows(folder: Path) -> None:
    index = folder / "model_index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "_class_name": "NoSuchPipeline"}))
    assert "NoSuchPipeline" in refusal(str(folder))


def test_a_hub_id_while_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "nobody/nothing is no local folder, and the hub does not give it" in refusal("nobody/nothing")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--size", "60x40"], "must be a multiple of 16"),
        (["--size", "big"], "WIDTHxHEIGHT"),
        (["--frames", "10"], "4k+1"),
        (["--dtype", "int8"], "int8 is not one of"),
        (["--component", "vae"], "NAME=FOLDER"),
        (["--component", "unet=x"], "unet"),
        (["--config"], "--gpu"),
    ],
)
def test_what_cannot_be_asked(whole: Path, arguments: list[str], says: str) -> None:
    assert says in refusal(str(whole), *arguments)


def test_a_profile_that_fits_and_one_that_does_not() -> None:
    code, out, _ = run("check", "flux.1-schnell", "--gpu", "24", "--size", "512x512")
    assert code == 0
    assert "offload: group" in out
    code, _, err = run("check", "flux.1-schnell", "--gpu", "1")
    assert (code, err.strip()) == (1, "error: it does not fit cards of 1 GB")


def test_a_profile_gives_a_configuration_to_serve_with() -> None:
    code, out, _ = run("check", "flux.1-schnell", "--gpu", "48", "--config")
    assert code == 0
    config = load_config(yaml.safe_load(out))
    assert config.models[0].path == "black-forest-labs/FLUX.1-schnell"
    assert config.denoiser.num_gpus > 0


def test_profiles_are_listed() -> None:
    assert "ltx-2.3\tdiffusers/LTX-2.3-Diffusers" in run("profiles")[1]
