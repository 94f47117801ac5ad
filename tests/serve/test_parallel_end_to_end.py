"""A denoiser over several ranks for real: Ray with fake GPUs, gloo between the ranks, HTTP, and faults."""

from __future__ import annotations

import base64
import io
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from tests import in_process
from tests.fake_gpus import FakeGPUs, fake_gpus

from raydiance.serve import media
from raydiance.serve.config import load_config

PROMPT = "a large red circle moving right on a black background"
PICTURE = {"prompt": PROMPT, "size": "96x64", "seed": 5, "num_inference_steps": 6, "response_format": "b64_json"}
ODD = PICTURE | {"size": "80x48", "seed": 6}
UNGUIDED = PICTURE | {"guidance_scale": 1.0}
VIDEO = {"prompt": PROMPT, "height": 64, "width": 96, "num_frames": 9, "num_inference_steps": 4, "seed": 3}
GREY_LEVEL = 1
TIMEOUT_S = 120


def picture(client: httpx.Client, request: dict[str, Any]) -> np.ndarray:
    answer = client.post("/v1/images/generations", json=request)
    assert answer.status_code == 200, answer.text
    data = base64.b64decode(answer.json()["data"][0]["b64_json"])
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def video(client: httpx.Client, **request: Any) -> np.ndarray:
    job = client.post("/v1/jobs", json={**VIDEO, **request}).raise_for_status().json()
    deadline = time.monotonic() + TIMEOUT_S
    while job["status"] != "completed":
        assert job["status"] in ("queued", "in_progress"), job
        assert time.monotonic() < deadline
        time.sleep(0.05)
        job = client.get(f"/v1/jobs/{job['id']}").raise_for_status().json()
    data = client.get(f"/v1/jobs/{job['id']}/content").raise_for_status().content
    return media.decode_video(data)[0].astype(int)


def made(url: str) -> dict[str, np.ndarray]:
    with httpx.Client(base_url=url, timeout=TIMEOUT_S) as client:
        return {
            "guided": picture(client, PICTURE),
            "odd": picture(client, ODD),
            "unguided": picture(client, UNGUIDED),
            "video": video(client),
        }


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """What one rank makes, in this process and without Ray."""
    folder = tmp_path_factory.mktemp("one")
    stores = {"storage.database": f"sqlite:///{folder}/jobs.db", "storage.artifacts": f"{folder}/artifacts"}
    with in_process.serving(load_config({"model": "tiny", "denoiser.num_threads": 1, **stores})) as url:
        return made(url)


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, pixels in expected.items():
        assert found[name].shape == pixels.shape
        assert np.abs(found[name] - pixels).max() <= GREY_LEVEL, name


def test_two_ranks_serve_the_pixels_of_one(tmp_path: Path, expected: dict[str, np.ndarray]) -> None:
    with fake_gpus(tmp_path, 2, **{"parallel.gpus": 2}) as program:
        url = program.started["url"]
        assert_same(made(url), expected)
        seen = program.ask("stats")
        assert len(set(seen["ranks"])) == 2
        assert seen["pid"] not in seen["ranks"]
        assert sum(seen["ways"].values()) > 0
        measured = {way for _, way, _ in seen["costs"]}
        assert {"cfg 2 x ring 1 x ulysses 1, synchronous", "cfg 1 x ring 1 x ulysses 2, halves"} <= measured
        assert program.ask("left") == {"GPU": 0, "groups": ["CREATED"]}  # both GPUs are taken
        assert httpx.post(f"{url}/v1/images/generations", json=PICTURE | {"size": "17x64"}).status_code == 400


def test_impossible_layouts_are_refused_with_the_numbers(tmp_path: Path) -> None:
    with fake_gpus(tmp_path, 2, **{"parallel.gpus": 2, "parallel.ring": 4}) as program:
        assert "parallel.ring=4 is more than parallel.gpus=2" in program.started["refused"]
    with fake_gpus(tmp_path, 2, **{"parallel.gpus": 4}) as program:
        says = "parallel.gpus=4: 4 GPUs are needed for all replicas, this machine has 2"
        assert says in program.started["refused"]


@pytest.mark.drill
@pytest.mark.parametrize(
    "settings",
    [
        {"parallel.ring": 2, "parallel.cfg": 1},
        {"parallel.cfg": 2, "parallel.schedule": "halves"},
        {"parallel.ring": 1, "parallel.cfg": 1, "parallel.schedule": "lanes"},
        {},
    ],
    ids=["ring2-ulysses2", "cfg2-ulysses2-halves", "ulysses4-lanes", "auto"],
)
def test_four_ranks_serve_the_pixels_of_one(
    tmp_path: Path, expected: dict[str, np.ndarray], settings: dict[str, Any]
) -> None:
    with fake_gpus(tmp_path, 4, **{"parallel.gpus": 4, **settings}) as program:
        assert_same(made(program.started["url"]), expected)
        ways = program.ask("stats")["ways"]
        if "parallel.ring" in settings:
            assert all(f"ring {settings['parallel.ring']} " in way for way in ways)


@pytest.mark.drill
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["SIGKILL", "SIGSTOP"])
def test_a_lost_rank_is_told_with_a_checkpoint_and_its_replica_replaced(
    tmp_path: Path, fault: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    deadline_s = 3.0
    settings = {"parallel.gpus": 2, "parallel.step_deadline_s": deadline_s, "parallel.calibration_s": 5}
    with (
        fake_gpus(tmp_path, 2, **settings) as program,
        httpx.Client(base_url=program.started["url"], timeout=TIMEOUT_S) as client,
    ):
        before = picture(client, PICTURE)
        for turn in range(3):
            seen = program.ask("stats")
            lost = program.ask("lose", pid=seen["ranks"][turn % 2], fault=int(fault))
            assert lost["step"] > 5
            assert lost["received"], "the error carries the last checkpoint that was received"
            assert lost["cause"] == "ActorDiedError"
            assert lost["after_s"] < 1.0 + (deadline_s if fault == signal.SIGSTOP else 0.0)
            assert lost["off"] <= 1e-4
            assert wait_until_gone([seen["pid"], *seen["ranks"]])
            assert replaced(program, seen["pid"])
            assert program.ask("left")["groups"] == ["CREATED"]
            with capsys.disabled():
                print(f"{fault.name}: told after {lost['after_s']:.2f} s")
        assert np.array_equal(picture(client, PICTURE), before)


def replaced(program: FakeGPUs, pid: int) -> bool:
    seen = program.ask("stats")
    return seen is not None and seen["pid"] != pid


def wait_until_gone(pids: list[int]) -> bool:
    """Whether all processes end within seconds."""
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        if not any(is_alive(pid) for pid in pids):
            return True
        time.sleep(0.1)
    return False


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
