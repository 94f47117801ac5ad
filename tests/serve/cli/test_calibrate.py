"""`raydiance calibrate`, on the embedded model, for as short as it can."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tests.guests import save_sana
from typer.testing import CliRunner, Result

from raydiance.models.options import LoadOptions
from raydiance.models.tiny import CHECKPOINT
from raydiance.serve.cli import app
from raydiance.serve.engine.cost_profile import identity_of, load_profile


def calibrate(*args: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["calibrate", *map(str, args)])
    assert result.exit_code == code, result.output
    assert "unexpected" not in result.stderr
    return result


def refused(*args: str | Path) -> str:
    [line] = calibrate(*args, code=2).stderr.splitlines()
    return line


def test_a_profile_is_written_and_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "tiny.json"
    result = calibrate("tiny", "--output", file, "--quick", "--threads", 1, "--longest", 1)
    profile = load_profile(file, identity_of(CHECKPOINT, lambda _: LoadOptions(), 1))
    assert {"step", "text", "decode"} <= profile.model.coefficients.keys()
    told = [line.split("\t") for line in result.stdout.splitlines()]
    assert {part for part, *_ in told} == profile.errors().keys()
    assert all(mean.endswith("%") and p95.endswith("%") for _, _, mean, p95 in told)
    assert f"{file}: written" in result.stderr
    assert json.loads(file.read_text())["machine"]["cores"] >= 1


def test_a_configuration_chooses_its_model(tmp_path: Path) -> None:
    config = tmp_path / "raydiance.yaml"
    config.write_text(yaml.safe_dump({"models": [{"path": "tiny", "name": "small"}]}))
    assert "has no model 'large'; it has small" in refused("large", "--config", config)
    assert "denoiser.num_thread" in refused("small", "--config", config, "--set", "denoiser.num_thread=1")


def test_what_cannot_be_measured(tmp_path: Path) -> None:
    assert "nope is neither a folder nor a Hugging Face id" in refused("nope")
    assert "so its steps have no price" in refused(save_sana(tmp_path / "guest"))


@pytest.mark.parametrize("option", [("--threads", "0"), ("--longest", "0")])
def test_impossible_values(option: tuple[str, str]) -> None:
    assert option[0] in calibrate("tiny", *option, code=2).stderr
