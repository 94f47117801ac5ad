"""The one builder, as Ray's own tools call it."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from ray.serve import Application
from tests.servers import Server, free_port

from raydiance.serve.app import build_app
from raydiance.serve.config import Config
from raydiance.serve.errors import ConfigError

SERVE = str(Path(sys.executable).with_name("serve"))


@pytest.mark.parametrize("args", [None, {}, {"model": "tiny", "denoiser.num_threads": "2"}, Config()])
def test_every_form_of_arguments_gives_an_application(args: Any) -> None:
    assert isinstance(build_app(args), Application)


def test_arguments_are_checked_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match=r"denoiser\.threads"):
        build_app({"denoiser.threads": "2"})


def generate(server: Server) -> None:
    body = {"prompt": "a red circle", "size": "32x32", "num_inference_steps": 2}
    answer = httpx.post(f"{server.url}/v1/images/generations", json=body, timeout=60).raise_for_status().json()
    assert answer["data"][0]["b64_json"]


@pytest.mark.slow
def test_serve_run_with_an_import_path(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 8000))  # the port is `serve run`'s own: it has no option for it
    storage = [f"storage.database=sqlite:///{tmp_path}/jobs.db", f"storage.artifacts={tmp_path}/artifacts"]
    command = [SERVE, "run", "raydiance.serve.app:build_app", "model=tiny", *storage]
    server = Server(tmp_path, port=8000, command=command)
    try:
        generate(server.wait_ready())
    finally:
        server.stop()


@pytest.mark.slow
def test_a_serve_config_file(tmp_path: Path) -> None:
    port = free_port()
    storage = {"database": f"sqlite:///{tmp_path}/jobs.db", "artifacts": f"{tmp_path}/artifacts"}
    app = {
        "name": "raydiance",
        "route_prefix": "/",
        "import_path": "raydiance.serve.app:build_app",
        "args": {"model": "tiny", "denoiser": {"num_threads": 1}, "storage": storage},
    }
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump({"http_options": {"host": "127.0.0.1", "port": port}, "applications": [app]}))
    server = Server(tmp_path, port=port, command=[SERVE, "run", str(file)])
    try:
        generate(server.wait_ready())
    finally:
        server.stop()
