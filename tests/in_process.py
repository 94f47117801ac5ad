"""The whole application without Ray: real HTTP, Service, dispatchers and stages, joined by calls in one process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import uvicorn
from tests.local_handles import LocalHandle

from raydiance.serve.api import create_app
from raydiance.serve.config import Config, ModelConfig
from raydiance.serve.dispatcher import Dispatcher
from raydiance.serve.service import Service
from raydiance.serve.stages import refs
from raydiance.serve.stages.denoiser import Denoiser
from raydiance.serve.stages.text_encoder import TextEncoder
from raydiance.serve.stages.vae_decoder import VAEDecoder
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.jobs import JobStore

START_TIMEOUT_S = 120


@contextmanager
def serving(config: Config) -> Iterator[str]:
    """The URL of an application that serves `config.models`, each with stages of its own, until the block ends."""
    started, stopping = threading.Event(), threading.Event()
    failed: list[BaseException] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def live() -> None:
            try:
                asyncio.run(_serve(config, listener, started, stopping))
            except BaseException as e:  # noqa: BLE001 - raised again in the test's thread
                failed.append(e)
                started.set()

        with mock.patch.object(refs, "put", lambda value, loop: value):
            thread = threading.Thread(target=live)
            thread.start()
            try:
                assert started.wait(START_TIMEOUT_S)
                if failed:
                    raise failed[0]
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                stopping.set()
                thread.join()


async def _serve(config: Config, listener: socket.socket, started: threading.Event, stopping: threading.Event) -> None:
    dispatchers = {m.id: Dispatcher(config, m, 1, False, **_stages(config, m)) for m in config.models}
    service = Service(config, dispatchers, JobStore(config.storage.database), ArtifactStore(config.storage.artifacts))
    options: dict[str, Any] = {"log_level": "warning", "ws": "none", "timeout_graceful_shutdown": 1}
    server = uvicorn.Server(uvicorn.Config(create_app(service, config), **options))
    serve = asyncio.ensure_future(server.serve(sockets=[listener]))
    while not await service.ready():
        await asyncio.sleep(0.05)
    started.set()
    await asyncio.to_thread(stopping.wait)
    server.should_exit = True
    await serve


def _stages(config: Config, model: ModelConfig) -> dict[str, Any]:
    return {
        "text_encoder": LocalHandle(TextEncoder(model, config.text_encoder, "cpu")),
        "denoiser": LocalHandle(Denoiser(model, config.denoiser, "cpu")),
        "vae_decoder": LocalHandle(VAEDecoder(model, config, "cpu")),
    }
