"""Bodies that come slowly, over plain sockets: a 408 and the end of the connection, or an answer."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from raydiance.serve.api import middleware

TIMEOUT_S = 0.5
BODY = json.dumps({"prompt": "a cat", "num_frames": 1, "num_inference_steps": 1}).encode()
FORM = (
    b'--b\r\ncontent-disposition: form-data; name="prompt"\r\n\r\na cat\r\n'
    b'--b\r\ncontent-disposition: form-data; name="num_frames"\r\n\r\n1\r\n--b--\r\n'
)


@pytest.fixture
def server(start: Callable[..., Any]) -> Any:
    return start(http={"body_timeout_s": TIMEOUT_S})


class Slow:
    """One connection that sends as slowly as the test wants."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self.socket = socket.create_connection((place.hostname or "", place.port or 0), timeout=20)
        self.file = self.socket.makefile("rb")

    def send_head(self, *lines: str, path: str = "/v1/jobs", content_type: str = "application/json") -> None:
        head = (f"POST {path} HTTP/1.1", "host: test", f"content-type: {content_type}", *lines, "", "")
        self.socket.sendall("\r\n".join(head).encode())

    def answer(self) -> tuple[int, dict[str, str], Any]:
        status = int(self.file.readline().split()[1])
        headers = {}
        while line := self.file.readline().strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return status, headers, json.loads(self.file.read(int(headers["content-length"])))

    def has_ended(self) -> bool:
        return self.file.read(1) == b""


@pytest.fixture
def slow(server: Any) -> Iterator[Slow]:
    slow = Slow(server.url)
    yield slow
    slow.file.close()
    slow.socket.close()


def refused(slow: Slow) -> str:
    status, headers, body = slow.answer()
    assert (status, headers["connection"]) == (408, "close")
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert (body["error"]["type"], body["error"]["code"]) == ("invalid_request_error", "request_timeout")
    assert "x-request-id" in headers
    assert slow.has_ended()
    return str(body["error"]["message"])


@pytest.mark.parametrize("sent", [0, 10, len(BODY) - 1])
def test_a_body_that_stands_still(slow: Slow, sent: int) -> None:
    slow.send_head(f"content-length: {len(BODY)}")
    slow.socket.sendall(BODY[:sent])
    began = time.monotonic()
    message = refused(slow)
    assert time.monotonic() - began >= TIMEOUT_S * 0.9
    assert f"{sent} bytes" in message
    assert "0.5 s (http.body_timeout_s)" in message


def test_a_form_that_stands_still(slow: Slow) -> None:
    slow.send_head(f"content-length: {len(FORM)}", content_type="multipart/form-data; boundary=b")
    slow.socket.sendall(FORM[:80])
    refused(slow)


def test_chunks_that_stand_still(slow: Slow) -> None:
    slow.send_head("transfer-encoding: chunked", path="/v1/images/generations")
    slow.socket.sendall(b"5\r\n" + BODY[:5] + b"\r\n")
    refused(slow)


def test_a_body_that_trickles_without_end(slow: Slow) -> None:
    """Each pause is short; their sum is not."""
    slow.send_head("content-length: 1000000")
    began = time.monotonic()
    while not select.select([slow.socket], [], [], TIMEOUT_S / 10)[0]:
        slow.socket.sendall(b" ")
    assert TIMEOUT_S * 0.9 <= time.monotonic() - began < 10
    refused(slow)


def test_a_steady_body_may_take_longer_than_one_pause(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "MIN_BYTES_PER_S", 10)
    slow.send_head(f"content-length: {len(BODY)}")
    began = time.monotonic()
    for i in range(0, len(BODY), 5):
        slow.socket.sendall(BODY[i : i + 5])
        time.sleep(0.1)
    assert time.monotonic() - began > 2 * TIMEOUT_S
    status, headers, job = slow.answer()
    assert (status, job["status"]) == (201, "queued")
    assert "connection" not in headers


def test_an_answer_may_take_longer_than_a_body(slow: Slow) -> None:
    """A whole body, and work and silence that last: the bound is on bodies alone. The connection stays."""
    body = json.dumps({"prompt": "slow cat", "num_inference_steps": 2}).encode()
    slow.send_head(f"content-length: {len(body)}", path="/v1/images/generations")
    slow.socket.sendall(body)
    assert slow.answer()[0] == 200
    slow.send_head(f"content-length: {len(BODY)}")
    slow.socket.sendall(BODY)
    assert slow.answer()[0] == 201


def test_events_may_last_longer_than_a_body(server: Any) -> None:
    http = server.http()
    job = http.post("/v1/jobs", json={"prompt": "slow cat", "num_frames": 1, "num_inference_steps": 2}).json()
    assert "event: completed" in http.get(f"/v1/jobs/{job['id']}/events").text
