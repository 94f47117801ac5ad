"""What the goodput benchmark sends requests to: the plain deployment, and ours with one policy or another."""

from __future__ import annotations

import base64
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

COLOURS = ("red", "green", "blue", "yellow", "purple")
SHAPES = ("circle", "square", "triangle")
MOTIONS = ("moving left", "moving right", "moving up", "moving down", "standing still")
GROUNDS = ("black", "gray", "white")
GUIDANCE, FPS = 4.0, 8
START_S, END_S = 300.0, 30.0


@dataclass(frozen=True)
class Answer:
    """Args: status: "done", "refused" (429) or "failed"."""

    status: str
    data: bytes = b""


@dataclass(frozen=True)
class Arm:
    """Args: is_ours: whether it knows of deadlines and tiers."""

    name: str
    url: str
    is_ours: bool

    async def ask(self, client: httpx.AsyncClient, arrival: Arrival, seed: int, slo_s: float | None) -> Answer:
        """Sent, waited for, and its file fetched."""
        width, height, frames = arrival.dimensions
        body: dict[str, Any] = {
            "prompt": prompt_of(seed),
            "height": height,
            "width": width,
            "num_frames": frames,
            "num_inference_steps": arrival.steps,
            "guidance_scale": GUIDANCE,
            "fps": FPS,
            "seed": seed,
        }
        if not self.is_ours:
            answer = await client.post(f"{self.url}/generate", json=body)
            return Answer("done" if answer.is_success else "failed", answer.content)
        body |= {"service_tier": arrival.tier} | ({} if slo_s is None else {"slo_s": slo_s})
        return await (self._image(client, body) if frames == 1 else self._video(client, body))

    async def _image(self, client: httpx.AsyncClient, body: dict[str, Any]) -> Answer:
        """One call that waits."""
        size = f"{body['width']}x{body['height']}"
        body = {name: value for name, value in body.items() if name not in ("width", "height", "num_frames", "fps")}
        answer = await client.post(f"{self.url}/v1/images/generations", json={**body, "size": size})
        if not answer.is_success:
            return Answer(_status(answer))
        return Answer("done", base64.b64decode(answer.json()["data"][0]["b64_json"]))

    async def _video(self, client: httpx.AsyncClient, body: dict[str, Any]) -> Answer:
        answer = await client.post(f"{self.url}/v1/jobs", json={**body, "task": "text-to-video"})
        if not answer.is_success:
            return Answer(_status(answer))
        job = answer.json()["id"]
        async with client.stream("GET", f"{self.url}/v1/jobs/{job}/events") as events:
            kinds = [line async for line in events.aiter_lines() if line.startswith("event:")]
        if not kinds or kinds[-1] != "event: completed":
            return Answer("failed")
        content = await client.get(f"{self.url}/v1/jobs/{job}/content")
        return Answer("done" if content.is_success else "failed", content.content)


def _status(answer: httpx.Response) -> str:
    return "refused" if answer.status_code == httpx.codes.TOO_MANY_REQUESTS else "failed"


def prompt_of(seed: int) -> str:
    """450 of them: no request is served from another's embeddings too soon."""
    size, rest = ("large", "small")[seed % 2], seed // 2
    colour, rest = COLOURS[rest % 5], rest // 5
    shape, rest = SHAPES[rest % 3], rest // 3
    motion, rest = MOTIONS[rest % 5], rest // 5
    return f"a {size} {colour} {shape} {motion} on a {GROUNDS[rest % 3]} background"


@contextlib.contextmanager
def plain(replicas: int, threads: int) -> Iterator[Arm]:
    port = _free_port()
    program = str(Path(__file__).with_name("goodput_plain.py"))
    command = [sys.executable, program, "--port", str(port), "--replicas", str(replicas), "--threads", str(threads)]
    url = f"http://127.0.0.1:{port}"
    with _running(command, f"{url}/docs"):
        yield Arm("plain", url, is_ours=False)


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
            yield Arm("ours" if policy == "slack" else policy, url, is_ours=True)


@contextlib.contextmanager
def _running(command: list[str], probe: str) -> Iterator[None]:
    with tempfile.TemporaryFile() as log:
        environment = os.environ | {"RAY_worker_niceness": "0"}  # Ray's own default makes workers wait for others
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=environment
        )
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
