"""What is refused before a local cluster loads anything."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.checkpoints import save_wan
from tests.guests import save_sana
from tests.servers import Server

from raydiance.serve import preflight
from raydiance.serve.config import Config, ModelConfig, load_config
from raydiance.serve.errors import ConfigError


@pytest.mark.parametrize(
    ("values", "needed"),
    [
        ({"denoiser.num_gpus": 1}, "1 GPUs"),
        ({"denoiser.num_gpus": 0.5, "denoiser.num_replicas": 4, "vae_decoder.num_gpus": 1}, "3 GPUs"),
        ({"models": [{"path": "tiny"}, {"path": "tiny", "name": "b"}], "text_encoder.num_gpus": 1}, "2 GPUs"),
    ],
)
def test_more_gpus_than_there_are(values: dict[str, Any], needed: str) -> None:
    config = load_config(values)
    with pytest.raises(ConfigError, match=rf"num_gpus=.*{needed} are needed.*has 0"):
        preflight.check_gpus(config, 0)
    preflight.check_gpus(config, 3)
    preflight.check_gpus(load_config(), 0)


def test_a_model_that_is_not_whole(tmp_path: Path) -> None:
    folder = save_wan(tmp_path / "wan")
    model = ModelConfig(path=str(folder), name="m")
    assert preflight.check_model(model) == folder
    shutil.rmtree(folder / "tokenizer")
    with pytest.raises(ConfigError, match=r"model 'm': .*has no folder tokenizer"):
        preflight.check_model(model)


def test_a_start_that_is_refused_says_why_and_ends(tmp_path: Path) -> None:
    """The whole way: Ray has been started by then, Serve has not."""
    assert "denoiser.num_gpus=999" in _refused("tiny", "--set", "denoiser.num_gpus=999", cwd=tmp_path)


def _refused(*args: str, cwd: Path) -> str:
    """What `raydiance serve` says on stderr when it ends without having served."""
    command = [sys.executable, "-c", "from raydiance.serve.cli import main; main()", "serve", *args, "--port", "0"]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert "./nofolder is neither a folder nor" in _refused("./nofolder", cwd=tmp_path)


def test_stores_that_cannot_be_opened(tmp_path: Path) -> None:
    preflight.check_stores(_stores(tmp_path / "jobs.db", tmp_path / "artifacts"))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"storage\.database"):
        preflight.check_stores(_stores(tmp_path / "file" / "jobs.db", tmp_path / "artifacts"))
    with pytest.raises(ConfigError, match=r"storage\.artifacts"):
        preflight.check_stores(_stores(tmp_path / "jobs.db", tmp_path / "file" / "artifacts"))


def _stores(database: Path, artifacts: Path) -> Config:
    return load_config({"storage.database": f"sqlite:///{database}", "storage.artifacts": str(artifacts)})


def _without_a_file(folder: Path) -> None:
    (folder / "transformer" / "diffusion_pytorch_model.safetensors").unlink()


def _of_another_shape(folder: Path) -> None:
    file = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    weights = load_file(file)
    weights["proj_out.weight"] = torch.zeros(3, 5)
    save_file(weights, file)


def _pickled(folder: Path) -> None:
    file = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    torch.save(load_file(file), file.with_suffix(".bin"))
    file.unlink()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_without_a_file, r"transformer has no \*\.safetensors"),
        (_of_another_shape, r"transformer has shapes: proj_out\.weight is 3x5 and not"),
        (_pickled, r"found diffusion_pytorch_model\.bin, which may run code"),
    ],
)
def test_weights_are_refused_before_a_replica_opens_them(
    damage: Callable[[Path], None], says: str, tmp_path: Path
) -> None:
    """Exit code 2: what a replica says of them is 1, after Serve has tried for 47 seconds."""
    folder = save_wan(tmp_path / "wan")
    damage(folder)
    err = _refused(str(folder), cwd=tmp_path)
    assert re.search(f"model 'wan': .*{says}", err), err


def test_weights_of_a_component_from_elsewhere(tmp_path: Path) -> None:
    folder, other = save_wan(tmp_path / "wan"), save_wan(tmp_path / "other")
    (folder / "vae" / "diffusion_pytorch_model.safetensors").unlink()  # what says what it can do is its own
    model = ModelConfig(path=str(folder), name="m", components={"vae": str(other)})
    preflight.check_weights(model, preflight.check_model(model))
    with pytest.raises(ConfigError, match=r"components\.unet: .* has .*vae"):
        preflight.check_model(model.model_copy(update={"components": {"unet": str(other)}}))


def test_a_guest_is_asked_for_its_files_alone(tmp_path: Path) -> None:
    model = ModelConfig(path=str(save_sana(tmp_path / "guest")), name="g")
    preflight.check_weights(model, preflight.check_model(model))


@pytest.mark.parametrize(
    ("defaults", "says"),
    [
        ({"num_step": 3}, r"defaults\.num_step is not one of .*num_inference_steps"),
        ({"num_inference_steps": 2.5}, r"num_inference_steps=2\.5 must be a whole number"),
        ({"height": 33}, "height=33 must be a multiple of"),
        ({"num_inference_steps": 0}, "num_inference_steps=0 must be"),
    ],
)
def test_defaults_that_no_request_could_use(defaults: dict[str, float], says: str) -> None:
    with pytest.raises(ConfigError, match=f"model 'tiny': .*{says}"):
        preflight.check_model(ModelConfig(defaults=defaults))
    preflight.check_model(ModelConfig(defaults={"num_inference_steps": 3, "height": 48}))


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [3, 8, 14])
def test_sigterm_while_it_starts_ends_like_ctrl_c(tmp_path: Path, after_s: int) -> None:
    server = Server(tmp_path)
    time.sleep(after_s)
    server.process.terminate()
    assert server.process.wait(60) in (0, 130)  # 0 if it was ready already
    server.stop()
    assert "Traceback" not in server.log.read_text()
