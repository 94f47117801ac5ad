"""What is refused before a local cluster loads anything."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints import save_wan
from tests.servers import Server

from raydiance.serve import local
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
        local.check_gpus(config, 0)
    local.check_gpus(config, 3)
    local.check_gpus(load_config(), 0)


def test_a_model_that_is_not_whole(tmp_path: Path) -> None:
    folder = save_wan(tmp_path / "wan")
    model = ModelConfig(path=str(folder), name="m")
    assert local.check_model(model) == folder
    shutil.rmtree(folder / "tokenizer")
    with pytest.raises(ConfigError, match=r"model 'm': .*has no folder tokenizer"):
        local.check_model(model)


def test_a_start_that_is_refused_says_why_and_ends(tmp_path: Path) -> None:
    """The whole way: Ray has been started by then, Serve has not."""
    code = "from raydiance.serve.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", "tiny", "--port", "0", "--set", "denoiser.num_gpus=999"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "denoiser.num_gpus=999" in done.stderr
    assert "Traceback" not in done.stderr


def test_stores_that_cannot_be_opened(tmp_path: Path) -> None:
    local.check_stores(_stores(tmp_path / "jobs.db", tmp_path / "artifacts"))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"storage\.database"):
        local.check_stores(_stores(tmp_path / "file" / "jobs.db", tmp_path / "artifacts"))
    with pytest.raises(ConfigError, match=r"storage\.artifacts"):
        local.check_stores(_stores(tmp_path / "jobs.db", tmp_path / "file" / "artifacts"))


def _stores(database: Path, artifacts: Path) -> Config:
    return load_config({"storage.database": f"sqlite:///{database}", "storage.artifacts": str(artifacts)})


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [3, 8, 14])
def test_sigterm_while_it_starts_ends_like_ctrl_c(tmp_path: Path, after_s: int) -> None:
    server = Server(tmp_path)
    time.sleep(after_s)
    server.process.terminate()
    assert server.process.wait(60) in (0, 130)  # 0 if it was ready already
    server.stop()
    assert "Traceback" not in server.log.read_text()
