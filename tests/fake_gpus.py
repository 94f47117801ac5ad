"""A program that serves the embedded model over several ranks, on GPUs that Ray only counts, and is asked by pipe.

    python -m tests.fake_gpus NUM_GPUS SETTINGS          SETTINGS: JSON of options

Apart from the tests' process: Ray reads its environment when it is imported. Answers are lines of JSON: first the URL,
or what was refused; then one for each command, see `COMMANDS`.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from tests.piped import Piped

STEPS = 80
START_TIMEOUT_S = 180


class FakeGPUs(Piped):
    """The program, as a test sees it."""

    def __init__(self, folder: Path, num_gpus: int, settings: dict[str, Any]) -> None:
        options = {
            "model": "tiny",
            "http.port": 0,
            "storage.database": f"sqlite:///{folder}/jobs.db",
            "storage.artifacts": f"{folder}/artifacts",
            "denoiser.num_gpus": 1,
            "denoiser.checkpoint_interval_s": 0.2,
            "denoiser.progress_interval_s": 0.05,
            "parallel.device": "cpu",
            **settings,
        }
        super().__init__("tests.fake_gpus", str(num_gpus), json.dumps(options))


@contextmanager
def fake_gpus(folder: Path, num_gpus: int, **settings: Any) -> Iterator[FakeGPUs]:
    program = FakeGPUs(folder, num_gpus, settings)
    try:
        yield program
    finally:
        program.stop()


def main() -> None:
    from raydiance.serve.config import load_config
    from raydiance.serve.errors import RaydianceError
    from raydiance.serve.local import ENVIRONMENT, start_local

    os.environ |= ENVIRONMENT | dict(os.environ)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import ray

    def answer(value: Any) -> None:
        print(json.dumps(value), file=answers, flush=True)

    try:
        with (
            mock.patch.object(ray, "init", functools.partial(ray.init, num_gpus=int(sys.argv[1]))),
            start_local(load_config(json.loads(sys.argv[2]))) as server,
        ):
            answer({"url": server.url, "start_s": server.start_s})
            for line in sys.stdin:
                command = json.loads(line)
                answer(COMMANDS[command.pop("do")](**command))
    except RaydianceError as e:
        answer({"refused": str(e)})
    os._exit(0)  # nothing of Ray's is left


def deployment(stage: str) -> Any:
    from ray import serve

    return serve.get_deployment_handle(f"{stage}-tiny", "raydiance")


def stats(stage: str = "Denoiser") -> dict[str, Any] | None:
    """None while there is no replica."""
    import ray

    try:
        found: dict[str, Any] = deployment(stage).stats.remote().result(timeout_s=60)
    except (ray.exceptions.RayError, TimeoutError):
        return None
    return found


def left() -> dict[str, Any]:
    """What Ray has: free GPUs, and placement groups."""
    import ray

    groups = [g["state"] for g in ray.util.placement_group_table().values() if g["state"] != "REMOVED"]
    return {"GPU": ray.available_resources().get("GPU", 0), "groups": groups}


def lose(pid: int, fault: int) -> dict[str, Any]:
    """A rank is lost in mid-generation: what whoever listens is told, and how long after; what it had received."""
    return asyncio.run(_lose(pid, fault))


async def _lose(pid: int, fault: int) -> dict[str, Any]:
    from raydiance.serve.errors import ReplicaLost
    from raydiance.serve.stages.denoising import denoising
    from raydiance.serve.stages.messages import Checkpointed, Work

    last, lost_at = None, 0.0
    try:
        async with denoising(deployment("Denoiser"), Work(f"long-{pid}", spec()), embeddings(), None) as lease:
            async for event in lease.events:
                if isinstance(event, Checkpointed):
                    last = event
                    if not lost_at and event.step > 5:
                        os.kill(pid, fault)
                        lost_at = time.monotonic()
    except ReplicaLost as error:
        after_s = time.monotonic() - lost_at
        received = last is not None and (last.step, last.data) == (error.step, error.checkpoint)
        return {"step": error.step, "after_s": after_s, "received": received, "cause": type(error.__cause__).__name__,
                "off": await _off(error.step, error.checkpoint)}  # fmt: skip
    return {"step": None}


async def _off(step: int, checkpoint: bytes | None) -> float:
    """How far what goes on from a checkpoint ends from what one rank makes without a pause."""
    from raydiance.serve.stages.denoising import denoising
    from raydiance.serve.stages.messages import Denoised, Work

    work, found = Work(f"again-{step}", spec(), checkpoint=checkpoint, step=step), None
    async with denoising(deployment("Denoiser"), work, embeddings(), None) as lease:
        async for event in lease.events:
            if isinstance(event, Denoised):
                found = await event.latents
    assert found is not None
    return float((found - alone()).abs().max())


@functools.cache
def alone() -> Any:
    """The latents that one rank makes without a pause."""
    from raydiance.models import registry, resolve
    from raydiance.serve.engine.engine import Engine

    engine = Engine(registry.load(resolve.resolve("tiny"), "denoise", "tiny"))
    trajectory = engine.start(spec(), engine.family.conditioning(spec(), *embeddings()))
    while not trajectory.is_done:
        [trajectory] = engine.step([trajectory])
    return engine.finish(trajectory)


def spec() -> Any:
    from raydiance.models import registry, resolve
    from raydiance.serve.samples import default_spec

    card = registry.card(resolve.resolve("tiny"), "tiny")
    return replace(default_spec(card, num_inference_steps=STEPS), height=64, width=96, num_frames=9, seed=11)


@functools.cache
def embeddings() -> list[dict[str, Any]]:
    from raydiance.models import registry, resolve

    family = registry.load(resolve.resolve("tiny"), "encode", "tiny")
    return [dict(family.encode_prompts([text])[0]) for text in (spec().prompt, spec().negative_prompt)]


COMMANDS: dict[str, Callable[..., Any]] = {"stats": stats, "left": left, "lose": lose}

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a test that is interrupted closes the pipe
    main()
