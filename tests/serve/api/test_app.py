"""What every request passes: keys, limits, errors, ids; and the pages for probes and people."""

from __future__ import annotations

import ast
import hashlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai as openai_package
import pytest
from openai import OpenAI

from raydiance.serve import api

KEYS = ("first-key", "second-key")


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def test_keys(start: Callable[..., Any]) -> None:
    server = start(http={"api_key_sha256": [digest(KEYS[0]), digest(KEYS[1]).upper()]})
    http = server.http()
    assert http.get("/healthz").status_code == http.get("/readyz").status_code == 200
    for sent in (None, "Bearer wrong", "Bearer", f"Basic {KEYS[0]}", KEYS[0]):
        headers = {} if sent is None else {"Authorization": sent}
        for path in ("/v1/models", "/docs", "/nowhere", "/v1/jobs/x/content"):
            refused = http.get(path, headers=headers)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert refused.json()["error"]["type"] == "authentication_error"
            assert "x-request-id" in refused.headers
    for key in KEYS:
        with server.openai(api_key=key) as client:
            assert [m.id for m in client.models.list()] == ["tiny"]
    with server.openai(api_key="wrong") as client, pytest.raises(openai_package.AuthenticationError):
        client.models.list()


def test_models(openai: OpenAI, http: httpx.Client) -> None:
    [model] = openai.models.list()
    assert (model.id, model.object, model.owned_by, model.created) == ("tiny", "model", "raydiance", 1_750_000_000)
    shown = http.get("/v1/models/tiny").json()
    assert shown["limits"]["size_multiple"] == 16
    assert shown["defaults"]["num_frames"] == 9
    assert "image-to-video" in shown["tasks"]
    with pytest.raises(openai_package.NotFoundError) as caught:
        openai.models.retrieve("some/other")
    assert caught.value.code == "model_not_found"


def test_while_a_model_warms_up(start: Callable[..., Any]) -> None:
    server = start()
    server.dispatcher.card_ = None
    http = server.http()
    assert http.get("/healthz").status_code == 200
    assert http.get("/v1/models").json()["data"] == []
    for answer in (
        http.get("/readyz"),
        http.get("/v1/models/tiny"),
        http.post("/v1/videos", json={"prompt": "a cat"}),
        http.post("/v1/images/generations", json={"prompt": "a cat"}),
    ):
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert "warming up" in answer.json()["error"]["message"]
        assert "tiny" in answer.json()["error"]["message"]


def test_request_ids(http: httpx.Client) -> None:
    ids = [http.get(path).headers["x-request-id"] for path in ("/healthz", "/nowhere", "/v1/models")]
    assert len(set(ids)) == 3
    # the proxy that named it answers it; two headers of that name would read "a, a"
    assert "x-request-id" not in http.get("/healthz", headers={"x-request-id": "mine"}).headers
    assert http.get("/healthz", headers={"x-request-id": "a b"}).headers["x-request-id"] != "a b"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/v1/jobs/", 404, "not_found"),
        ("POST", "/v1/nothing", 404, "not_found"),
        ("PUT", "/v1/jobs", 405, "method_not_allowed"),
        ("GET", "/v1/images/generations", 405, "method_not_allowed"),
        ("DELETE", "/healthz", 405, "method_not_allowed"),
    ],
)
def test_unknown_routes(http: httpx.Client, method: str, path: str, status: int, code: str) -> None:
    answer = http.request(method, path)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert (error["type"], error["param"]) == ("invalid_request_error", None)
    assert path in error["message"]


def test_an_error_that_nobody_foresaw(
    server: Any, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(job_id: str, tenant: str | None) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(server.service.jobs, "get", broken)
    with caplog.at_level(logging.ERROR, "ray.serve"):
        answer = http.get("/v1/jobs/x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "secret" not in answer.text
    assert "ZeroDivisionError: secret detail" in caplog.text
    assert answer.headers["x-request-id"] in caplog.text


def test_an_error_in_a_stream_is_its_last_event(
    server: Any, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(job_id: str, after: int, **_: Any) -> Any:
        raise ZeroDivisionError("secret detail")
        yield

    job = http.post("/v1/jobs", json={"prompt": "hang"}).json()
    monkeypatch.setattr(server.service, "events", broken)
    text = http.get(f"/v1/jobs/{job['id']}/events").text
    assert text.startswith("event: error\ndata: ")
    assert "secret" not in text
    assert "secret detail" in caplog.text
    http.delete(f"/v1/jobs/{job['id']}")


def body_in_pieces(size: int) -> Iterator[bytes]:
    for _ in range(size // 1024):
        yield b" " * 1024


def test_bodies_are_bounded(start: Callable[..., Any]) -> None:
    http = start(limits={"max_body_bytes": 10_000}).http()
    headers = {"content-type": "application/json"}
    for content in (b" " * 20_000, body_in_pieces(20_480), b" " * 3_000_000):
        answer = http.post("/v1/jobs", content=content, headers=headers)
        assert answer.status_code == 413
        assert "10000 bytes (limits.max_body_bytes)" in answer.json()["error"]["message"]
    assert http.post("/v1/jobs", json={"prompt": "a cat"}).status_code == 201


def test_docs(http: httpx.Client) -> None:
    assert "swagger" in http.get("/docs").text
    page = http.get("/openapi.json").json()
    schemas = page["components"]["schemas"]
    for path, methods in page["paths"].items():
        for method, route in methods.items():
            assert route["summary"], (method, path)
            for kind in route.get("requestBody", {}).get("content", {}).values():
                assert kind["schema"].get("$ref", "").rpartition("/")[2] in schemas or "allOf" in kind["schema"]
    assert schemas["ImageGeneration"]["examples"][0]["prompt"]
    assert schemas["GenerationRequest"]["properties"]["inputs"]["maxItems"] == 16
    assert _references(page) <= {f"#/components/schemas/{name}" for name in schemas}


def test_docs_say_where_a_key_is_needed(start: Callable[..., Any], http: httpx.Client) -> None:
    open_page = http.get("/openapi.json").json()
    assert "securitySchemes" not in open_page["components"]
    assert not any("security" in route for methods in open_page["paths"].values() for route in methods.values())
    server = start(http={"api_key_sha256": [digest(KEYS[0])]})
    page = server.http(headers={"Authorization": f"Bearer {KEYS[0]}"}).get("/openapi.json").json()
    [(name, scheme)] = page["components"]["securitySchemes"].items()
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    assert {path: methods.keys() for path, methods in page["paths"].items()} == {
        path: methods.keys() for path, methods in open_page["paths"].items()
    }
    without = server.http()
    for path, methods in page["paths"].items():
        for method, route in methods.items():
            needs_key = without.request(method, path.format(id="x", model="x")).status_code == 401
            assert route["security"] == ([{name: []}] if needs_key else []), (method, path)


def _references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*(_references(v) for v in node.values()))
    return set().union(*(_references(v) for v in node)) if isinstance(node, list) else set()


def test_the_package_imports_neither_torch_nor_ray() -> None:
    for file in Path(api.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not {name.partition(".")[0] for name in names} & {"torch", "ray"}, file
