"""What is said of wrong options and values, and what needs no server."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.serve.cli.command import UNREACHABLE, run

from raydiance.serve.cli.server import given, local_config


def test_help_is_instant_and_has_examples() -> None:
    began = time.process_time(), time.monotonic()
    out, _ = run("--help")
    assert time.monotonic() - began[1] < 10  # a second on an idle machine; see test_arrows for what it may import
    assert "generate" in out
    assert "Exit codes" in out
    for command in ("serve", "generate"):
        assert "Examples" in run(command, "--help")[0]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["bogus"], "No such command"),
        (["generate"], "prompt"),
        (["generate", "x", "--frames", "many"], "--frames"),
        (["generate", "x", "-o", "clip.gif"], ".mp4, .webm"),
        (["generate", "x", "--size", "big"], "WIDTHxHEIGHT"),
        (["generate", "x", "-o", "a.mp4", "--task", "text-to-image"], "does not fit"),
        (["config", "check", "missing.yaml"], "missing.yaml"),
        (["models", "tiny"], "No such command"),
        (["serve", "/no/such/folder"], "/no/such/folder"),
        (["serve", "--set", "denoiser.num_threads"], "KEY=VALUE"),
        (["serve", "--set", "denoiser.bogus=1"], "denoiser.bogus"),
        (["jobs", "list", "--url", "nonsense"], "http:// or https://"),
        (["jobs", "show", "video_1", "--url", "http://"], "http:// or https://"),
        (["models", "--url", "ftp://host"], "http:// or https://"),
        (["generate", "x", "--url", "localhost:8000"], "http:// or https://"),
        (["generate", "x", "--image", "nofile.png"], "cannot read --image nofile.png: No such file"),
        (["generate", "x", "--task", "foo"], "--task foo is not one of text-to-image, "),
        (["generate", "x", "--model", "nope"], "nope"),
        (["serve", "./nofolder"], "./nofolder is neither a folder nor"),
        (["serve", "--port", "99999"], "http.port"),
        (["serve", "--config", "missing.yaml"], "missing.yaml"),
        (["models", "show", "nope"], "nope"),
        (["models", "check", "tiny", "--size", "big"], "--size big"),
        (["demo", "-o", "file"], "cannot write to -o file"),
    ],
)
def test_wrong_usage(args: list[str], says: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    _, err = run(*args, code=2, cwd=tmp_path)
    assert says in err


def test_no_server() -> None:
    assert "raydiance serve" in run("jobs", "list", "--url", UNREACHABLE, code=1)[1]
    assert "raydiance serve" in run("generate", "x", "--url", UNREACHABLE, code=1)[1]


def test_port_taken() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert "--port" in run("serve", "tiny", "--port", port, code=2)[1]


def test_config_check(tmp_path: Path) -> None:
    file = tmp_path / "raydiance.yaml"
    file.write_text(
        "model: tiny\nwebhooks: {secret: whsec_c2VjcmV0}\nstorage: {database: 'postgresql://me:hunter2@host/jobs'}\n"
    )
    out, _ = run("config", "check", file, "--set", "denoiser.num_threads=2")
    assert "num_threads: 2" in out
    assert "path: tiny" in out
    assert "whsec_" not in out
    assert "hunter2" not in out
    file.write_text("denoiser: {num_threads: -1, bogus: 1}\n")
    err = run("config", "check", file, code=2)[1]
    assert "denoiser.num_threads" in err
    assert "denoiser.bogus" in err


def test_models_of_a_folder() -> None:
    card = json.loads(run("models", "show", "tiny", "--json")[0])
    assert card["id"] == "tiny"
    assert "text-to-video" in card["tasks"]


def test_options_by_dotted_keys() -> None:
    assert given("tiny", None, 9000, ["a.b=c=d"]) == {"model": "tiny", "http.port": 9000, "a.b": "c=d"}


def test_jobs_are_kept_in_the_data_folder(tmp_path: Path) -> None:
    config = local_config(None, {"storage.artifacts": "s3://bucket/x"}, tmp_path)
    assert config.storage.database == f"sqlite:///{tmp_path}/jobs.db"
    assert config.storage.artifacts == "s3://bucket/x"
