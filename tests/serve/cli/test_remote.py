"""A server over HTTP, and what answers in the place of one."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.serve.cli.command import PROMPT, UNREACHABLE, run, start
from tests.servers import Server

from raydiance.serve.cli.remote import Remote, parse_sse
from raydiance.serve.errors import RaydianceError


def test_sse_is_parsed() -> None:
    lines = [
        ": alive",
        "",
        "id: 3",
        "event: progress",
        'data: {"step": 1,',
        'data:  "progress": 5}',
        "",
        "event: error",
        'data: {"error": {"message": "gone"}}',
        "",
    ]
    events = parse_sse(iter(lines), "job")
    first = next(events)
    assert (first.id, first.type, first.data) == (3, "progress", {"step": 1, "progress": 5})
    with pytest.raises(RaydianceError, match="gone"):
        next(events)


class Answer(NamedTuple):
    status: int
    body: str


REFUSED = Answer(401, '{"error": {"message": "a key is required", "code": "invalid_api_key"}}')
SERVED = Answer(200, '{"object": "list", "data": [{"id": "tiny", "tasks": ["text-to-image"]}]}')
OK = Answer(200, '{"status": "ok"}')
PAGE = Answer(200, "<html>hello</html>")


@contextmanager
def answering(answers: dict[str, Answer]) -> Iterator[str]:
    """The URL of a server that gives these answers by path, and 404 to whatever else is asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, Answer(404, "not here"))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("answers", "is_ready"),
    [
        ({"/readyz": OK, "/v1/models": SERVED}, True),
        ({"/readyz": OK, "/v1/models": REFUSED}, True),
        ({"/readyz": Answer(503, '{"error": {"message": "warming up"}}'), "/v1/models": SERVED}, False),
        ({}, False),
        ({"/readyz": PAGE, "/v1/models": PAGE}, False),
        ({"/readyz": OK}, False),
        ({"/readyz": OK, "/v1/models": PAGE}, False),
        ({"/readyz": OK, "/v1/models": Answer(200, '{"object": "list", "data": [{"id": "a-language-model"}]}')}, False),
        ({"/readyz": OK, "/v1/models": Answer(200, "[]")}, False),
        ({"/readyz": OK, "/v1/models": Answer(401, '{"detail": "no"}')}, False),
    ],
)
def test_what_is_taken_for_a_server(answers: dict[str, Answer], is_ready: bool) -> None:
    with answering(answers) as url:
        assert Remote(url).is_ready() is is_ready


def test_what_speaks_no_http_is_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def garble() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")

        threading.Thread(target=garble, daemon=True).start()
        assert not Remote(f"http://127.0.0.1:{listener.getsockname()[1]}").is_ready()
    assert not Remote(UNREACHABLE).is_ready()


def test_a_server_of_something_else_that_was_asked_for() -> None:
    with answering({"/readyz": PAGE, "/v1/models": PAGE, "/v1/jobs?limit=20": PAGE}) as url:
        assert "no Raydiance server is ready" in run("generate", "x", "--url", url, code=1)[1]
        assert "is that a Raydiance server?" in run("jobs", "list", "--url", url, code=1)[1]
        assert "is that a Raydiance server?" in run("models", "--url", url, code=1)[1]


def test_generate_beside_a_server_of_something_else_starts_and_stops_its_own(tmp_path: Path) -> None:
    with answering({"/readyz": PAGE, "/v1/models": PAGE}) as url:
        process = start(
            *("generate", PROMPT, "-o", "a.png", "--steps", "2"),
            cwd=tmp_path,
            default_url=url,
            RAYDIANCE_DATA=str(tmp_path / "unused"),
        )
        out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert out.split() == ["a.png"]
    assert f"no Raydiance server at {url}: starting one" in err
    assert not (tmp_path / "unused").exists()


def test_an_interrupt_while_a_job_is_sent_cancels_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    remote, sent = Remote(server.url), []
    with contextlib.closing(remote._http):
        made = _interrupted_while_sent(remote, sent, monkeypatch)
    assert sent[:3] == ["/v1/jobs", "/v1/jobs", f"/v1/jobs/{made['id']}/cancel"]
    assert made["status"] == "cancelled"


def _interrupted_while_sent(remote: Remote, sent: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The one job that there is afterwards."""
    send = remote._request

    def interrupted(method: str, path: str, **kwargs: Any) -> Any:
        answer = send(method, path, **kwargs)
        sent.append(path)
        if len(sent) == 1:  # it was accepted, and nobody has read that
            raise KeyboardInterrupt
        return answer

    before = {job["id"] for job in remote.jobs(100)["data"]}
    monkeypatch.setattr(remote, "_request", interrupted)
    with pytest.raises(KeyboardInterrupt):
        remote.submit({"prompt": "x", "width": 128, "height": 128, "num_frames": 17, "num_inference_steps": 200})
    [made] = [job for job in remote.jobs(100)["data"] if job["id"] not in before]
    return made
