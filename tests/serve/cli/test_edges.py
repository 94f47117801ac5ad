"""The command where something is wrong with what it is given: said before any work, and never by a traceback."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from raydiance.serve.cli import app, generate
from raydiance.serve.cli.console import guarded
from raydiance.serve.cli.remote import Remote
from raydiance.serve.errors import ConfigError, RaydianceError

UNREACHABLE = "http://127.0.0.1:9"


def invoke(*args: str | Path, code: int) -> str:
    """What it wrote to stderr."""
    result = CliRunner().invoke(app, [str(a) for a in args])
    assert result.exit_code == code, result.output
    assert "unexpected" not in result.stderr
    return result.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--guidance", "nan"], "guidance_scale=nan"),
        (["--guidance", "inf"], "guidance_scale=inf"),
        (["--strength", "nan"], "strength=nan"),
        (["-o", "{tmp}/file/clip.mp4"], "cannot write to"),
        (["-o", "{tmp}/folder.mp4"], "is a folder"),
    ],
)
def test_what_is_refused_before_a_server_is_asked(tmp_path: Path, options: list[str], says: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.mp4").mkdir()
    given = [option.format(tmp=tmp_path) for option in options]
    assert says in invoke("generate", "a circle", *given, "--url", UNREACHABLE, code=2)


class Finished:
    """A server where every job has completed."""

    def submit(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"id": "video_1"}

    def content(self, job_id: str, index: int) -> bytes:
        return b"frames"


def test_a_disk_that_is_full_names_the_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    output = {"index": 0, "content_type": "video/mp4"}
    ended = {"status": "completed", "outputs": [output], "parameters": {"seed": 1}}
    monkeypatch.setattr(generate, "follow", lambda *_: ended)
    target = tmp_path / "clip.mp4"
    target.symlink_to("/dev/full")
    remote: Any = Finished()
    with pytest.raises(RaydianceError, match=r"cannot write .*clip\.mp4: No space left.*video_1 has completed"):
        generate.run(remote, {"prompt": "a circle"}, target)


def test_sigterm_ends_a_command_as_ctrl_c_does() -> None:
    before = signal.getsignal(signal.SIGTERM)
    cleaned = []

    @guarded
    def command() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        finally:
            cleaned.append(True)

    with pytest.raises(typer.Exit) as ended:
        command()
    assert (ended.value.exit_code, cleaned) == (130, [True])
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("key", ["a\nb", "clé", "a\0b"])
def test_a_key_that_no_header_can_carry(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setattr("os.environ", {"RAYDIANCE_API_KEY": key})
    with pytest.raises(ConfigError, match="RAYDIANCE_API_KEY") as error:
        Remote(UNREACHABLE)
    assert key not in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"\xff\xfe", "cannot read"),
        (b"webhooks: {secret: hunter2}", "webhooks.secret must be"),
        (b"storage: {database: 'mysql://me:hunter2@host/jobs'}", "storage.database"),
        (b"storage: {database: jobs.db}", "storage.database"),
        (b"storage: {database: 'postgresql://me@host:x/jobs?password=hunter2'}", "storage.database"),
        (b"storage: {artifacts: 'gs://bucket/prefix'}", "storage.artifacts"),
    ],
)
def test_a_configuration_that_could_never_start_is_not_called_valid(tmp_path: Path, text: bytes, says: str) -> None:
    file = tmp_path / "raydiance.yaml"
    file.write_bytes(text)
    error = invoke("config", "check", file, code=2)
    assert says in error
    assert "hunter2" not in error


def test_no_password_is_shown_wherever_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "raydiance.yaml"
    for url in ("postgresql://me:hunter2@host/jobs", "postgresql://me@host/jobs?password=hunter2&sslmode=require"):
        file.write_text(f"storage: {{database: '{url}'}}")
        result = CliRunner().invoke(app, ["config", "check", str(file)])
        assert result.exit_code == 0
        assert "postgresql://me" in result.stdout
        assert "hunter2" not in result.output
