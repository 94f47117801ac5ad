"""`POST /v1/quotes`: what a request takes, and whether it would be let in, without doing it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve.api.conftest import Server

from raydiance.serve.api.quotes import QuoteView
from raydiance.serve.storage.job import JobState

Start = Callable[..., Server]
Refused = Callable[..., None]
STEP_S = 2.0
IMAGE = {"prompt": "a cat", "num_frames": 1, "num_inference_steps": 5}


@pytest.fixture
def server(start: Start) -> Server:
    server = start(auth={"mode": "keys", "gpu_second_price": 0.5})
    server.dispatcher.price(STEP_S)
    return server


def client(server: Server, tenant: str = "acme", **limits: Any) -> httpx.Client:
    server.service.jobs.set_tenant(tenant, **limits)
    return server.http(headers={"Authorization": f"Bearer {server.service.jobs.create_key(tenant)[1]}"})


def quote(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = http.post("/v1/quotes", json=IMAGE | fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_quote_is_as_documented(server: Server) -> None:
    found = quote(client(server), n=3)
    assert set(found) == set(QuoteView.model_fields)
    assert (found["object"], found["model"], found["n"], found["group"]) == ("quote", "tiny", 3, None)
    assert (found["latency_s"], found["gpu_seconds"], found["cost"]) == (5 * STEP_S, 15 * STEP_S, 7.5 * STEP_S)
    assert (found["would_be_admitted"], found["retry_after_s"], found["refusal"]) == (True, 0, None)
    assert found["service_tier"] == "standard"
    assert found["starts_in_s"] == 0
    assert found["expected_finish"] == pytest.approx(time.time() + 15 * STEP_S, abs=5)


def test_nothing_is_stored(server: Server, picture: bytes) -> None:
    http = client(server)
    for _ in range(3):
        answer = http.post("/v1/quotes", data={"prompt": "a cat"}, files={"first_frame": ("a.png", picture)})
        assert answer.status_code == 200, answer.text
    quote(http, group="round-1")
    assert server.service.jobs.list() == ([], False)
    assert http.get("/v1/groups/round-1").status_code == 404
    assert not list(Path(server.service.config.storage.artifacts).rglob("*.png"))
    assert quote(http)["starts_in_s"] == 0, "quotes keep no room"


def test_what_comes_before_it(server: Server, refused: Refused) -> None:
    """What a quote says is what a job then meets."""
    http = client(server)
    hanging = {"prompt": "hang", "num_frames": 1, "num_inference_steps": 50, "slo_s": 101}
    first = http.post("/v1/jobs", json=hanging).json()
    server.until(first["id"], JobState.IN_PROGRESS)
    late = quote(http, deadline_s=105)
    assert not late["would_be_admitted"]
    assert 0 < late["retry_after_s"] < 10
    assert "deadline_s" in late["refusal"]
    answer = http.post("/v1/jobs", json=IMAGE | {"deadline_s": 105})
    refused(answer, 429, None, "deadline_s", "too late")
    assert answer.headers["retry-after"] == str(int(answer.headers["retry-after"]))
    assert int(answer.headers["retry-after"]) == pytest.approx(late["retry_after_s"], abs=2)
    batch = quote(http, service_tier="batch")
    assert batch["would_be_admitted"]
    assert batch["slo_s"] is None
    assert batch["starts_in_s"] == pytest.approx(50 * STEP_S)
    http.delete(f"/v1/jobs/{first['id']}")


@pytest.mark.parametrize(
    ("limits", "fields", "param"),
    [
        ({"allowed_models": ("wan",)}, {}, "model"),
        ({"allowed_tiers": ("batch",)}, {}, "service_tier"),
        ({"concurrency": 1}, {"n": 2}, "n"),
    ],
)
def test_what_the_tenant_may_never_have(
    server: Server, refused: Refused, limits: dict[str, Any], fields: dict[str, Any], param: str
) -> None:
    refused(client(server, **limits).post("/v1/quotes", json=IMAGE | fields), 403, param, "acme")


def test_limits_that_are_reached(server: Server) -> None:
    """By whichever holds longest: when to come again is that of the job too."""
    http = client(server, gpu_seconds_per_minute=5 * STEP_S * 1.5)
    assert quote(http)["would_be_admitted"]
    assert http.post("/v1/jobs", json=IMAGE).status_code == 201
    found = quote(http)
    assert (found["would_be_admitted"], "gpu_seconds_per_minute" in found["refusal"]) == (False, True)
    assert 50 < found["retry_after_s"] <= 60
    answer = http.post("/v1/jobs", json=IMAGE)
    assert 0 <= int(answer.headers["retry-after"]) - found["retry_after_s"] + 2 <= 3


def test_a_full_table(start: Start) -> None:
    http = start(limits={"max_queued_jobs": 1}).http()
    hanging = http.post("/v1/jobs", json={"prompt": "hang"}).json()
    found = quote(http)
    assert (found["would_be_admitted"], "max_queued_jobs" in found["refusal"]) == (False, True)
    http.delete(f"/v1/jobs/{hanging['id']}")
    assert quote(http)["would_be_admitted"]


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "dall-e"}, 404, "model"),
        ({"num_inference_steps": 0}, 400, "num_inference_steps"),
        ({"steps": 3}, 400, "steps"),
        ({"deadline_s": -1}, 400, "deadline_s"),
        ({"service_tier": "soon"}, 400, "service_tier"),
        ({"group": "a b"}, 400, "group"),
    ],
)
def test_fields_that_cannot_be_honoured(
    server: Server, refused: Refused, fields: dict[str, Any], status: int, param: str
) -> None:
    refused(client(server).post("/v1/quotes", json=IMAGE | fields), status, param)
