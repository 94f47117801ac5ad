"""The command as a person types it: in a process of its own, alone and against a real server."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from PIL import Image
from tests.servers import Server, free_port

from raydiance.serve.cli.generate import build_request
from raydiance.serve.cli.remote import parse_sse
from raydiance.serve.cli.server import given, local_config
from raydiance.serve.errors import ConfigError, InvalidRequest, RaydianceError
from raydiance.serve.media import decode_video

RAYDIANCE = (sys.executable, "-c", "from raydiance.serve.cli import main; main()")
PROMPT = "a large red circle moves right on a white background"
UNREACHABLE = "http://127.0.0.1:9"


def start(*args: str | Path, cwd: Path | None = None, **env: str) -> subprocess.Popen[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("RAYDIANCE_", "RAY_"))}
    return subprocess.Popen(
        [*RAYDIANCE, *map(str, args)],
        cwd=cwd,
        env=clean | {"NO_COLOR": "1", "COLUMNS": "120"} | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*args: str | Path, code: int = 0, cwd: Path | None = None, **env: str) -> tuple[str, str]:
    """What it wrote to stdout and stderr. There is never a traceback."""
    process = start(*args, cwd=cwd, **env)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
    assert "Traceback" not in out + err
    return out, err


def png(colour: str = "red") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32), colour).save(buffer, format="PNG")
    return buffer.getvalue()


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
        (["models", "/no/such/folder"], "/no/such/folder"),
        (["serve", "/no/such/folder"], "/no/such/folder"),
        (["serve", "--set", "denoiser.num_threads"], "KEY=VALUE"),
        (["serve", "--set", "denoiser.bogus=1"], "denoiser.bogus"),
        (["jobs", "list", "--url", "nonsense"], "nonsense"),
    ],
)
def test_wrong_usage(args: list[str], says: str, tmp_path: Path) -> None:
    _, err = run(*args, code=1 if says == "nonsense" else 2, cwd=tmp_path)
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
    card = json.loads(run("models", "tiny", "--json")[0])
    assert card["id"] == "tiny"
    assert "text-to-video" in card["tasks"]


def test_options_by_dotted_keys() -> None:
    assert given("tiny", None, 9000, ["a.b=c=d"]) == {"model": "tiny", "http.port": 9000, "a.b": "c=d"}


def test_jobs_are_kept_in_the_data_folder(tmp_path: Path) -> None:
    config = local_config(None, {"storage.artifacts": "s3://bucket/x"}, tmp_path)
    assert config.storage.database == f"sqlite:///{tmp_path}/jobs.db"
    assert config.storage.artifacts == "s3://bucket/x"


@pytest.mark.parametrize(
    ("wanted", "image", "output", "task", "role"),
    [
        ({}, False, None, None, None),
        ({}, False, "a.png", "text-to-image", None),
        ({"num_frames": 1}, False, None, "text-to-image", None),
        ({}, True, "a.mp4", None, "first_frame"),
        ({}, True, None, None, "first_frame"),
        ({}, True, "a.JPG", "image-to-image", "init"),
        ({"strength": 0.5}, True, None, "image-to-image", "init"),
        ({"task": "image-to-image"}, True, None, "image-to-image", "init"),
    ],
)
def test_task_follows_from_suffix_and_image(
    wanted: dict[str, object], image: bool, output: str | None, task: str | None, role: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "in.png"
    file.write_bytes(png())
    request = build_request(wanted, file if image else None, None if output is None else Path(output))
    assert request.get("task") == task
    roles = [item["role"] for item in request.get("inputs", [])]
    assert roles == ([] if role is None else [role])
    if image:
        assert base64.b64decode(request["inputs"][0]["source"]["b64"]) == png()


def test_contradictions_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="--frames 1"):
        build_request({"num_frames": 1}, None, Path("a.mp4"))
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        given(None, None, None, ["=1"])


def test_sse_is_parsed() -> None:
    lines = [
        ": alive",
        "",
        "id: 3",
        "event: progress",
        'data: {"step": 1,',
        'data:  "progress": 5}',
        "",
        "event: error",
        'data: {"error": {"message": "gone"}}',
        "",
    ]
    events = parse_sse(iter(lines), "job")
    first = next(events)
    assert (first.id, first.type, first.data) == (3, "progress", {"step": 1, "progress": 5})
    with pytest.raises(RaydianceError, match="gone"):
        next(events)


# against a server ---------------------------------------------------------------------------------------------------


def job_of(server: Server, index: int = 0) -> dict[str, object]:
    jobs = httpx.get(f"{server.url}/v1/jobs", params={"limit": 5}).json()["data"]
    return dict(jobs[index])


def test_generate_a_video(server: Server, tmp_path: Path) -> None:
    out, err = run(
        "generate", PROMPT, "-o", "clip.mp4", "--seed", "5", "--steps", "4", cwd=tmp_path, RAYDIANCE_URL=server.url
    )
    assert out.split() == ["clip.mp4"]
    assert "seed 5" in err
    assert "denoise" in err
    frames, fps = decode_video((tmp_path / "clip.mp4").read_bytes())
    assert frames.shape == (9, 32, 32, 3)
    assert fps == 8


def test_generate_images_and_from_an_image(server: Server, tmp_path: Path) -> None:
    steps = ("--steps", "4", "--url", server.url)
    out, _ = run("generate", "a blue square", "--frames", "1", "--n", "2", *steps, cwd=tmp_path)
    assert out.split() == ["a-blue-square-1.png", "a-blue-square-2.png"]
    first, second = (tmp_path / name for name in out.split())
    assert first.read_bytes() != second.read_bytes()
    run(
        "generate",
        "x",
        "--image",
        first,
        "--strength",
        "0.5",
        "--size",
        "48x32",
        "-o",
        "new/e.jpg",
        *steps,
        cwd=tmp_path,
    )
    with Image.open(tmp_path / "new" / "e.jpg") as image:
        assert (image.size, image.format) == ((48, 32), "JPEG")
    run("generate", "x", "--image", first, "--frames", "5", "--fps", "4", "-o", "v.webm", *steps, cwd=tmp_path)
    frames, fps = decode_video((tmp_path / "v.webm").read_bytes())
    assert (len(frames), fps) == (5, 4)


def test_what_the_server_refuses(server: Server, tmp_path: Path) -> None:
    url = ("--url", server.url)
    assert "4k+1" in run("generate", "x", "--frames", "6", *url, code=2, cwd=tmp_path)[1]
    assert "nope" in run("generate", "x", "--model", "nope", *url, code=1, cwd=tmp_path)[1]
    assert "no job" in run("jobs", "show", "video_" + 32 * "0", *url, code=1)[1]
    assert list(tmp_path.iterdir()) == []


def test_jobs_and_models(server: Server, tmp_path: Path) -> None:
    url = ("--url", server.url)
    run("generate", "a green circle", "-o", "g.png", "--steps", "2", *url, cwd=tmp_path)
    out, _ = run("jobs", "list", "--limit", "1", *url)
    job_id, status, percent, task, _, prompt = out.rstrip("\n").split("\t")
    assert (status, percent, task, prompt) == ("completed", "100%", "text-to-image", "a green circle")
    assert json.loads(run("jobs", "show", job_id, *url)[0])["id"] == job_id
    assert "completed" in run("jobs", "watch", job_id, *url)[1]
    assert "completed" in run("jobs", "cancel", job_id, *url)[1]
    assert "deleted" in run("jobs", "delete", job_id, *url)[1]
    run("jobs", "watch", job_id, *url, code=1)
    assert run("models", *url)[0].startswith("tiny\twan\t")
    assert "image-to-video" in json.loads(run("models", "--json", *url)[0])[0]["tasks"]


@pytest.fixture
def long_job(server: Server, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`raydiance generate` that is busy for a while."""
    before = job_of(server)["id"] if httpx.get(f"{server.url}/v1/jobs").json()["data"] else None
    large = ("--size", "128x128", "--frames", "17", "--steps", "200")
    process = start("generate", "x", *large, "-o", "long.mp4", "--url", server.url, cwd=tmp_path)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        jobs = httpx.get(f"{server.url}/v1/jobs", params={"limit": 1}).json()["data"]
        if jobs and jobs[0]["id"] != before and jobs[0]["status"] == "in_progress":
            break
        time.sleep(0.1)
    yield process
    process.kill()
    process.wait()


def test_ctrl_c_cancels_the_job(server: Server, long_job: subprocess.Popen[str], tmp_path: Path) -> None:
    assert job_of(server)["status"] == "in_progress"
    long_job.send_signal(signal.SIGINT)
    out, err = long_job.communicate(timeout=30)
    assert long_job.returncode == 130, err
    assert "Traceback" not in out + err
    assert "is cancelled" in err
    assert job_of(server)["status"] == "cancelled"
    assert not (tmp_path / "long.mp4").exists()


def test_delete_stops_a_running_job(server: Server, long_job: subprocess.Popen[str]) -> None:
    job_id = str(job_of(server)["id"])
    run("jobs", "delete", job_id, "--url", server.url)
    assert httpx.get(f"{server.url}/v1/jobs/{job_id}").status_code == 404
    long_job.communicate(timeout=30)
    assert long_job.returncode == 1


def test_generate_without_a_server_starts_and_stops_one(tmp_path: Path) -> None:
    home = {"RAYDIANCE_DATA": str(tmp_path / "unused")}
    process = start("generate", PROMPT, "-o", "a.png", "--steps", "2", cwd=tmp_path, **home)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert out.split() == ["a.png"]
    assert re.search(r"no server at http://127.0.0.1:8000", err)
    assert not (tmp_path / "unused").exists()


def test_serve_stops_on_sigterm(tmp_path: Path) -> None:
    port = free_port()
    process = start("serve", "--port", str(port), RAYDIANCE_DATA=str(tmp_path / "data"))
    try:
        assert process.stdout is not None
        greeting = ""
        while "Ctrl-C" not in greeting:
            line = process.stdout.readline()
            assert line, process.stderr and process.stderr.read()
            greeting += line
        assert f"http://127.0.0.1:{port}" in greeting
        assert "curl" in greeting
        assert (tmp_path / "data" / "jobs.db").exists()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "stopped" in err
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/healthz")


def test_a_local_cluster_listens_on_loopback_alone(server: Server) -> None:
    """But for one port of each Serve replica, which asks for Ray's token."""
    pids = {name: set(server.pids(name)) for name in ("", "ServeReplica")}
    exposed = {pid for pid in pids[""] - pids["ServeReplica"] for _ in _exposed_ports(pid)}
    assert not exposed, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in exposed]
    assert all(len(_exposed_ports(pid)) <= 1 for pid in pids["ServeReplica"])


def _exposed_ports(pid: int) -> list[int]:
    """Ports that a process listens on at an address other than loopback."""
    return [
        c.laddr.port
        for c in psutil.Process(pid).net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and not c.laddr.ip.removeprefix("::ffff:").startswith("127.")
    ]
