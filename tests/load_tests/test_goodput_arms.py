"""How the goodput benchmark asks ours: over real HTTP, with a double behind the dispatcher's handle."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from goodput_arms import Arm
from goodput_mix import kinds, quick_mix
from tests.serve.api.conftest import Server, running

IMAGE, _, VIDEO, _ = kinds(quick_mix())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("arm")) as server:
        yield server


@pytest.fixture
async def client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=20)


@pytest.mark.parametrize(("arrival", "starts"), [(IMAGE, b"\x89PNG"), (VIDEO, b"\x00\x00\x00")])
async def test_what_is_done_comes_with_its_file(
    server: Server, client: httpx.AsyncClient, arrival: object, starts: bytes
) -> None:
    async with client:
        answer = await Arm("ours", server.url, is_ours=True).ask(client, arrival, 1, 60.0)  # type: ignore[arg-type]
    assert (answer.status, answer.data[: len(starts)]) == ("done", starts)


@pytest.mark.parametrize("arrival", [IMAGE, VIDEO])
async def test_what_cannot_be_in_time_is_refused(server: Server, client: httpx.AsyncClient, arrival: object) -> None:
    server.dispatcher.price(1.0)
    hang = {"prompt": "hang", "num_inference_steps": 100, "slo_s": 300}
    async with client:
        job = (await client.post(f"{server.url}/v1/jobs", json=hang)).json()["id"]
        answer = await Arm("ours", server.url, is_ours=True).ask(client, arrival, 1, 0.5)  # type: ignore[arg-type]
        await client.delete(f"{server.url}/v1/jobs/{job}")
    assert answer.status == "refused"
