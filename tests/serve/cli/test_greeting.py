"""What `raydiance serve` prints when it is ready."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.guests import save_sana
from tests.servers import Server, free_port

from raydiance.serve.cli.greeting import command, greeting
from raydiance.serve.config import load_config
from raydiance.serve.local import LocalServer

SCRIPT = Path(sys.executable).with_name("raydiance")
KEY = "a-key-that-nobody-may-see"
URL = "http://127.0.0.1:8000"


def lines_of(text: str) -> dict[str, str]:
    return dict(re.findall(r"^  (\w+) +(.*)$", text, re.MULTILINE))


def greet(**values: object) -> dict[str, str]:
    return lines_of(greeting(LocalServer(URL, "127.0.0.1:6379", load_config(dict(values)), 1.0)))


def test_an_open_server() -> None:
    lines = greet()
    assert list(lines) == ["docs", "try", "or", "openai", "python", "stop"]
    assert "-o clip.mp4" in lines["try"]
    assert shlex.split(lines["or"])[-1].startswith('{"prompt": "a large red circle')
    assert lines["openai"].endswith('api_key="none")')
    assert lines["python"].endswith('raydiance.connect("127.0.0.1:6379")')


def test_a_model_of_pictures(tmp_path: Path) -> None:
    assert "-o picture.png" in greet(model=str(save_sana(tmp_path / "sana")))["try"]


@pytest.mark.parametrize(
    ("run_as", "on_path", "shown"),
    [
        (str(SCRIPT), True, "raydiance"),
        (str(SCRIPT), False, str(SCRIPT)),
        (os.path.relpath(SCRIPT), False, os.path.relpath(SCRIPT)),
        ("-c", True, "raydiance"),
        ("-c", False, str(SCRIPT)),
    ],
)
def test_the_command_as_it_was_run(monkeypatch: pytest.MonkeyPatch, run_as: str, on_path: bool, shown: str) -> None:
    monkeypatch.setattr(sys, "argv", [run_as])
    monkeypatch.setenv("PATH", f"{SCRIPT.parent}:/bin" if on_path else "/bin")
    assert command() == shown


def test_its_lines_can_be_pasted(tmp_path: Path) -> None:
    """From the folder that it was run in, without anything on the path but the system's; with a key."""
    port, script = free_port(), os.path.relpath(SCRIPT)
    config = tmp_path / "raydiance.yaml"
    sha256 = hashlib.sha256(KEY.encode()).hexdigest()
    config.write_text(
        f"http: {{port: {port}, api_key_sha256: {sha256}}}\n"
        f"storage: {{database: 'sqlite:///{tmp_path}/jobs.db', artifacts: '{tmp_path}/artifacts'}}\n"
    )
    server = Server(tmp_path, port=port, command=(script, "serve", "--config", str(config)))
    try:
        server.wait_ready()
        env = {"PATH": "/usr/bin:/bin", "HOME": os.environ["HOME"], "RAYDIANCE_API_KEY": KEY}
        lines = lines_of(_printed(server))
        assert lines["try"].startswith(f"{script} generate")
        made = _paste(lines["try"].replace("-o clip.mp4", f"-o {tmp_path}/clip.mp4"), env)
        assert made.strip() == f"{tmp_path}/clip.mp4"
        assert (tmp_path / "clip.mp4").stat().st_size > 500
        assert '"queued"' in _paste(lines["or"], env)
        python = lines["openai"] + "; print([m.id for m in client.models.list()])"
        assert _paste(f"{shlex.quote(sys.executable)} -c {shlex.quote(python)}", env).strip() == "['tiny']"
        assert _paste(f"{lines['key']}; printenv RAYDIANCE_API_KEY", env | {"RAYDIANCE_API_KEY": ""}, KEY) == KEY + "\n"
    finally:
        server.stop()
    assert KEY not in server.log.read_text()
    assert sha256 not in server.log.read_text()


def _printed(server: Server) -> str:
    while "Ctrl-C" not in (text := server.log.read_text()):  # HTTP is ready a moment before
        assert server.process.poll() is None
    return text


def _paste(line: str, env: dict[str, str], stdin: str = "") -> str:
    done = subprocess.run(
        ["bash", "-c", line], env=env, input=f"{stdin}\n", capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, (line, done.stderr)
    return done.stdout
