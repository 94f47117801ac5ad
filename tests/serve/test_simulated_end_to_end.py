"""`raydiance serve` with simulated accelerators: real HTTP, Serve and processes, none of them with torch."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from PIL import Image
from tests.servers import Server, free_port

from raydiance.serve.engine.cost_model import CostModel
from raydiance.serve.engine.cost_profile import Profile

pytestmark = pytest.mark.slow
STEP_S = 0.05
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def simulating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("simulating")
    Profile(CostModel({"step": {"forwards": STEP_S / 2}}), {}, {}, ()).save(folder / "costs.json")
    config: dict[str, object] = {
        "models": [{"path": "tiny", "cost_profile": str(folder / "costs.json")}],
        "simulate": {"gpu": "h100", "startup_s": 1},
        "storage": {"database": f"sqlite:///{folder}/jobs.db", "artifacts": f"{folder}/artifacts"},
        "denoiser": {"num_gpus": 1, "progress_interval_s": 0.05, "checkpoint_interval_s": 0.2},
    }
    (folder / "simulated.yaml").write_text(yaml.safe_dump(config))
    start, port = "from raydiance.serve.cli import main; main()", free_port()
    command = [sys.executable, "-c", start, "serve", "--config", str(folder / "simulated.yaml"), "--port", str(port)]
    server = Server(folder, port=port, command=command)
    try:
        yield server.wait_ready()
    finally:
        server.stop()


def test_every_answer_and_file_says_that_it_is_simulated(simulating: Server) -> None:
    with httpx.Client(base_url=simulating.url, timeout=TIMEOUT_S) as client:
        models = client.get("/v1/models")
        assert models.headers["raydiance-simulated"] == "true"
        assert models.json()["data"][0]["simulated"] is True
        made = client.post("/v1/images/generations", json={"prompt": "a red circle", "seed": 1})
        assert made.status_code == 200, made.text
        [job] = client.get("/v1/jobs").json()["data"]
        assert job["outputs"][0]["simulated"] is True
        data = client.get(job["outputs"][0]["url"]).content
    assert Image.open(io.BytesIO(data)).format == "PNG"
    assert "SIMULATED" in simulating.log.read_text()


def test_no_process_of_it_has_torch(simulating: Server) -> None:
    replicas = simulating.pids("ServeReplica")
    assert len(replicas) >= 5
    assert not [pid for pid in replicas if "libtorch" in Path(f"/proc/{pid}/maps").read_text()]


def test_a_generation_survives_its_simulated_gpu(simulating: Server) -> None:
    with httpx.Client(base_url=simulating.url, timeout=TIMEOUT_S) as client:
        body = {"prompt": "a red circle", "seed": 1, "num_inference_steps": 150}
        job = client.post("/v1/jobs", json=body).json()
        _wait(client, job["id"], lambda found: found["progress"] >= 20)
        [denoiser] = simulating.pids("ServeReplica:raydiance:Denoiser")
        began = time.monotonic()
        os.kill(denoiser, signal.SIGKILL)
        ended = _wait(client, job["id"], lambda found: found["status"] == "completed")
        assert ended["attempt"] == 1  # it went on: it was not started again
        assert time.monotonic() - began < TIMEOUT_S


def _wait(client: httpx.Client, job_id: str, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        found: dict[str, Any] = client.get(f"/v1/jobs/{job_id}").json()
        assert found["status"] not in ("failed", "cancelled"), found["error"]
        if until(found):
            return found
        time.sleep(0.1)
    raise AssertionError(f"job {job_id} did not get there in {TIMEOUT_S} s")
