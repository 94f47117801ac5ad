"""What the goodput benchmark sends requests to: the plain deployment, and ours with one policy or another."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from traces import Arrival

PROMPT = "a large red circle moving right on a black background"
GUIDANCE, FPS = 4.0, 8
START_S, END_S = 180.0, 30.0


@dataclass(frozen=True)
class Answer:
    """Args: status: "done", or "refused" with what it takes until it was told so."""

    status: str
    data: bytes = b""


@dataclass(frozen=True)
class Arm:
    """Args: is_ours: whether it knows of deadlines and tiers."""

    name: str
    url: str
    is_ours: bool

    async def ask(self, client: httpx.AsyncClient, arrival: Arrival, seed: int, slo_s: float | None) -> Answer:
        """Sent, waited for, and its file fetched. Raises RuntimeError for what failed."""
        width, height, frames = arrival.dimensions
        body: dict[str, Any] = {
            "prompt": PROMPT,
            "height": height,
            "width": width,
            "num_frames": frames,
            "num_inference_steps": arrival.steps,
            "guidance_scale": GUIDANCE,
            "fps": FPS,
            "seed": seed,
        }
        if not self.is_ours:
            return Answer("done", (await client.post(f"{self.url}/generate", json=body)).raise_for_status().content)
        task = "text-to-image" if frames == 1 else "text-to-video"
        body |= {"task": task, "service_tier": arrival.tier} | ({} if slo_s is None else {"slo_s": slo_s})
        answer = await client.post(f"{self.url}/v1/jobs", json=body)
        if answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
            return Answer("refused")
        job = answer.raise_for_status().json()["id"]
        async with client.stream("GET", f"{self.url}/v1/jobs/{job}/events") as events:
            kinds = [line async for line in events.aiter_lines() if line.startswith("event:")]
        if kinds[-1] != "event: completed":
            raise RuntimeError(f"{self.name}: job {job} ended with {kinds[-1]}")
        content = await client.get(f"{self.url}/v1/jobs/{job}/content")
        return Answer("done", content.raise_for_status().content)


@contextlib.contextmanager
def plain(replicas: int, threads: int) -> Iterator[Arm]:
    port = _free_port()
    program = str(Path(__file__).with_name("goodput_plain.py"))
    command = [sys.executable, program, "--port", str(port), "--replicas", str(replicas), "--threads", str(threads)]
    url = f"http://127.0.0.1:{port}"
    with _running(command, f"{url}/docs"):
        yield Arm(f"plain Ray Serve, {replicas} x {threads} threads", url, is_ours=False)


@contextlib.contextmanager
def ours(policy: str, settings: Mapping[str, Any]) -> Iterator[Arm]:
    port, url = _free_port(), ""
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "storage.database": f"sqlite:///{folder}/jobs.db",
            "storage.artifacts": f"{folder}/artifacts",
            "scheduling.policy": policy,
            **settings,
        }
        sets = [arg for key, value in options.items() for arg in ("--set", f"{key}={value}")]
        start = "from raydiance.serve.cli import main; main()"
        url = f"http://127.0.0.1:{port}"
        with _running([sys.executable, "-c", start, "serve", "tiny", "--port", str(port), *sets], f"{url}/readyz"):
            yield Arm(f"ours, {policy}", url, is_ours=True)


@contextlib.contextmanager
def _running(command: list[str], probe: str) -> Iterator[None]:
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            deadline = time.monotonic() + START_S
            while not _answers(probe):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"{command[1]} did not start:\n{log.read().decode()[-3000:]}")
                time.sleep(0.3)
            yield
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
