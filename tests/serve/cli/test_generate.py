"""`raydiance generate` and `raydiance jobs` against a real server."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image
from tests.serve.cli.command import PROMPT, png, run, start
from tests.servers import Server

from raydiance.serve.cli.generate import build_request
from raydiance.serve.cli.server import given
from raydiance.serve.errors import ConfigError, InvalidRequest
from raydiance.serve.media import decode_video


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
        ({"task": "image-to-image"}, True, None, "image-to-image", None),
        ({"task": "image-edit"}, True, "a.png", "image-edit", None),
    ],
)
def test_task_follows_from_suffix_and_image(
    wanted: dict[str, object], image: bool, output: str | None, task: str | None, role: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "in.png"
    file.write_bytes(png())
    request = build_request(wanted, file if image else None, None if output is None else Path(output))
    assert request.get("task") == task
    inputs = request.get("inputs", [])
    assert [item.get("role") for item in inputs] == ([role] if image else [])
    if image:
        assert base64.b64decode(request["inputs"][0]["source"]["b64"]) == png()


def test_contradictions_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="--frames 1"):
        build_request({"num_frames": 1}, None, Path("a.mp4"))
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        given(None, None, None, ["=1"])


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
    assert "nope" in run("generate", "x", "--model", "nope", *url, code=2, cwd=tmp_path)[1]
    assert "there is no" in run("jobs", "show", "../models", *url, code=1)[1]
    (tmp_path / "x.png").write_text("no picture")
    assert "image" in run("generate", "x", "--image", "x.png", *url, code=2, cwd=tmp_path)[1]
    (tmp_path / "x.png").unlink()
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
    process.communicate()  # closes its pipes too


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
