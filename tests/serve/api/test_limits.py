"""Keys and limits over HTTP: who is let in, how much, when to come again, and what was used."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from sqlalchemy import text
from tests.serve.api.conftest import Server

from raydiance.serve import tenants as tenants_module
from raydiance.serve.api.errors import error_response
from raydiance.serve.errors import TooManyRequests
from raydiance.serve.storage.tables import ApiKeyRow

Start = Callable[..., Server]
Refused = Callable[..., None]
GPU_SECONDS = {"text_encode": 0.25, "denoise": 2.0, "decode": 0.5, "total": 2.75}


@pytest.fixture
def server(start: Start) -> Server:
    return start(auth={"mode": "keys", "gpu_second_price": 2.0})


def client(server: Server, tenant: str = "acme", **limits: Any) -> httpx.Client:
    server.service.jobs.set_tenant(tenant, **limits)
    return server.http(headers={"Authorization": f"Bearer {server.service.jobs.create_key(tenant)[1]}"})


def test_a_revoked_key_is_let_in_no_longer_than_it_is_known(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants_module, "KEY_CACHE_S", 1e9)
    http, kept = client(server), client(server)
    assert http.get("/v1/models").status_code == kept.get("/v1/models").status_code == 200
    server.service.jobs.revoke_key(server.service.jobs.keys()[0].id)
    assert http.get("/v1/models").status_code == 200
    monkeypatch.setattr(tenants_module, "KEY_CACHE_S", 0.0)
    server.service.tenants._known.clear()
    assert http.get("/v1/models").status_code == 401
    assert kept.get("/v1/models").status_code == 200


def test_a_key_that_was_just_made_is_let_in_soon(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it was tried before it was known."""
    monkeypatch.setattr(tenants_module, "KEY_CACHE_S", 0.2)
    http = client(server)
    [key] = server.service.jobs.keys()
    server.service.jobs.revoke_key(key.id)
    assert http.get("/v1/models").status_code == 401
    with server.service.jobs._writing() as session:
        row = session.get(ApiKeyRow, key.id)
        assert row is not None
        row.revoked_at = None
    deadline = time.monotonic() + 20
    while http.get("/v1/models").status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


async def test_what_is_remembered_of_keys_is_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants_module, "MAX_CACHED_KEYS", 3)
    for i in range(10):
        with pytest.raises(tenants_module.Unauthorized):
            await server.service.tenants.authenticate(f"rd-{i}".encode())
    assert len(server.service.tenants._known) == 3


def test_keys_of_the_configuration_and_of_the_database_side_by_side(start: Start) -> None:
    server = start(http={"api_key_sha256": [hashlib.sha256(b"of-old").hexdigest()]})
    old, new = server.http(headers={"Authorization": "Bearer of-old"}), client(server)
    for http, tenant in ((old, "default"), (new, "acme")):
        assert http.post("/v1/jobs", json={"prompt": "a cat", "num_frames": 1}).json()["tenant"] == tenant


@pytest.mark.parametrize(("wait_s", "header"), [(0.1, "1"), (1.0, "1"), (1.01, "2"), (59.2, "60"), (86_399.5, "86400")])
def test_when_to_come_again_is_in_whole_seconds_and_never_too_soon(wait_s: float, header: str) -> None:
    assert error_response(TooManyRequests("wait", wait_s)).headers["retry-after"] == header


def test_a_database_that_is_away(server: Server) -> None:
    http = client(server)
    with server.service.jobs._writing() as session:
        session.execute(text("DROP TABLE api_keys"))
    answer = http.get("/v1/jobs")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")


def test_concurrency(server: Server, refused: Refused) -> None:
    http = client(server, concurrency=2)
    jobs = [http.post("/v1/jobs", json={"prompt": "hang"}).json()["id"] for _ in range(2)]
    answer = http.post("/v1/videos", json={"prompt": "a cat"})
    refused(answer, 429, None, "tenant 'acme'", "concurrency=2")
    assert answer.headers["retry-after"] == "1"
    refused(
        http.post("/v1/jobs", json={"prompt": "x", "n": 3, "num_frames": 1}), 403, "n", "3 samples", "concurrency=2"
    )
    assert client(server, "globex").post("/v1/jobs", json={"prompt": "a cat"}).status_code == 201
    folders = {path.name for path in Path(server.service.config.storage.artifacts, "jobs").glob("*")}
    for job_id in jobs:
        http.post(f"/v1/jobs/{job_id}/cancel")
    assert len(folders) <= 1, "a refused request leaves no files"
    assert http.post("/v1/jobs", json={"prompt": "a cat"}).status_code == 201


def test_requests_at_once_do_not_exceed_it_together(server: Server) -> None:
    http = client(server, concurrency=3)

    def submit(_: int) -> int:
        return http.post("/v1/jobs", json={"prompt": "hang"}).status_code

    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(submit, range(16)))
    assert (statuses.count(201), statuses.count(429)) == (3, 13)
    for job in server.service.jobs.unfinished():
        http.post(f"/v1/jobs/{job.id}/cancel")


def test_models_and_tiers(server: Server, refused: Refused) -> None:
    http = client(server, allowed_models=("wan",))
    refused(http.post("/v1/videos", json={"prompt": "a cat"}), 403, "model", "'tiny'", "wan")
    refused(http.post("/v1/videos", json={"prompt": "a cat", "model": "x"}), 404, "model")
    http = client(server, "globex", allowed_tiers=("batch",))
    refused(http.post("/v1/jobs", json={"prompt": "a cat"}), 403, "service_tier", "'standard'", "batch")


def test_what_was_used_is_said_and_limits(server: Server, refused: Refused) -> None:
    http = client(server, monthly_budget=5.0)
    job = http.post("/v1/jobs", json={"prompt": "a cat"}).json()
    assert job["usage"] is None
    server.until(job["id"])
    for path in ("/v1/jobs", "/v1/videos"):
        assert http.get(f"{path}/{job['id']}").json()["usage"] == {"gpu_seconds": GPU_SECONDS, "cost": 5.5}
    answer = http.post("/v1/jobs", json={"prompt": "a cat"})
    refused(answer, 429, None, "monthly_budget=5", "used: 5.5")
    assert int(answer.headers["retry-after"]) > 0


def test_the_openai_client_takes_our_usage(server: Server) -> None:
    server.service.jobs.set_tenant("acme")
    with server.openai(api_key=server.service.jobs.create_key("acme")[1]) as openai:
        check_usage(openai)


def check_usage(openai: OpenAI) -> None:
    images = openai.images.generate(prompt="a cat", n=2)
    assert images.usage is not None
    assert images.usage.total_tokens > 0
    assert images.usage.model_extra == {"gpu_seconds": GPU_SECONDS, "cost": 5.5}
    shares = []
    for event in openai.images.generate(prompt="a cat", n=2, stream=True):
        if event.type == "image_generation.completed":
            assert event.usage.model_extra is not None
            shares.append(event.usage.model_extra["cost"])
    assert shares == [2.75, 2.75]


def test_usage(server: Server, refused: Refused) -> None:
    http = client(server)
    for n in range(2):
        server.until(http.post("/v1/jobs", json={"prompt": "a cat", "num_frames": 1, "seed": n}).json()["id"])
    server.until(http.post("/v1/jobs", json={"prompt": "fail"}).json()["id"])
    report = http.get("/v1/usage").json()
    [line] = report["data"]
    assert (line["tenant"], line["model"], line["requests"], line["cost"]) == (None, "tiny", 3, 11.0)
    assert line["day"] == report["end"]
    assert report["start"] == report["end"][:8] + "01"
    assert line["gpu_seconds"] == {stage: 2 * s for stage, s in GPU_SECONDS.items()}
    assert report["total"] == {**line, "model": None, "day": None}
    [whole] = http.get("/v1/usage", params={"group_by": ""}).json()["data"]
    assert whole == report["total"]
    before = http.get("/v1/usage", params={"start": "2026-01-01", "end": "2026-01-31"}).json()
    assert (before["data"], before["total"]["requests"]) == ([], 0)
    for query, param, says in (
        ({"start": "yesterday"}, "start", "such as 2026-12-01"),
        ({"end": "20261201"}, "end", "such as 2026-12-01"),
        ({"start": "2026-02-02", "end": "2026-02-01"}, "start", "after end"),
        ({"group_by": "user"}, "group_by", "tenant, model, day"),
        ({"tenant": "globex"}, "tenant", "unknown parameter"),
    ):
        refused(http.get("/v1/usage", params=query), 400, param, says)


def test_a_key_is_in_no_log_and_no_answer(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server.service.jobs.set_tenant("acme")
    _, secret = server.service.jobs.create_key("acme")
    wrong = "rd-" + "w" * 43
    answers = []
    for sent in (secret, wrong, f"{secret} x"):
        for scheme in ("Bearer", "Basic", "bearer"):
            http = server.http(headers={"Authorization": f"{scheme} {sent}"})
            for method, path in (("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("GET", "/v1/jobs/x"), ("PUT", "/v1/x")):
                answers.append(http.request(method, path, json={"prompt": 3} if method == "POST" else None))
    assert {answer.status_code for answer in answers} == {200, 400, 401, 404}
    said = caplog.text + "".join(f"{a.text}{a.headers}" for a in answers)
    assert "GET" in caplog.text, "something was logged"
    for key in (secret, wrong):
        assert key not in said
        assert key.removeprefix("rd-")[:12] not in said
