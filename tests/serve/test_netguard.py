from __future__ import annotations

import asyncio
import ssl
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from raydiance.serve import netguard
from raydiance.serve.errors import InvalidRequest, TooLarge, Unavailable

Handler = Callable[[str, asyncio.StreamWriter], Awaitable[None]]
OPTIONS: dict[str, Any] = {"max_bytes": 10_000, "timeout_s": 5.0, "allow_hosts": ["127.0.0.1"]}


@asynccontextmanager
async def _server(handler: Handler, tls: ssl.SSLContext | None = None) -> Any:
    """Calls `handler` with the request's head; yields the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            await handler(head, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1]


def _answer(body: bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close"]
    lines += [f"{k.replace('_', '-')}: {v}" for k, v in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _resolver(table: dict[str, list[str]]) -> netguard.Resolve:
    async def resolve(host: str, port: int) -> list[str]:
        assert port
        if host not in table:
            raise OSError("no such host")
        return table[host]

    return resolve


def _fetch(handler: Handler, url: str = "http://127.0.0.1:{port}/a.png", **options: Any) -> tuple[bytes, str]:
    async def main() -> tuple[bytes, str]:
        async with _server(handler) as port:
            return await netguard.fetch(url.format(port=port), **{**OPTIONS, **options})

    return asyncio.run(main())


async def _ok(head: str, writer: asyncio.StreamWriter) -> None:
    writer.write(_answer(b"picture", content_type="image/png"))


def test_fetch_gives_bytes_and_type() -> None:
    assert _fetch(_ok) == (b"picture", "image/png")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.1", "[::1]"])
def test_nothing_private_is_reached_however_it_is_written(host: str) -> None:
    async def never(head: str, writer: asyncio.StreamWriter) -> None:
        raise AssertionError(head)

    with pytest.raises(InvalidRequest):
        _fetch(never, f"http://{host}:{{port}}/", allow_hosts=["10.0.0.1"])


def test_a_name_with_one_private_address_is_refused() -> None:
    resolve = _resolver({"mixed.example": ["8.8.8.8", "127.0.0.1"]})
    with pytest.raises(InvalidRequest, match=r"'mixed.example' is not a public host"):
        _fetch(_ok, "http://mixed.example:{port}/", allow_hosts=[], resolve=resolve)


def test_an_allowed_host_is_reached_under_its_name() -> None:
    heads: list[str] = []

    async def handler(head: str, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        await _ok(head, writer)

    resolve = _resolver({"files.example": ["127.0.0.1"]})
    for allow in ("FILES.example", "127.0.0.1"):
        assert _fetch(handler, "http://files.example:{port}/a?b", allow_hosts=[allow], resolve=resolve)[0] == b"picture"
    assert all(h.startswith("GET /a?b HTTP/1.1\r\n") for h in heads)
    assert all("\nhost: files.example:" in h.lower() for h in heads)


def test_international_names_are_looked_up_and_sent_in_ascii() -> None:
    async def handler(head: str, writer: asyncio.StreamWriter) -> None:
        writer.write(_answer(head.encode()))

    resolve = _resolver({"xn--mnchen-3ya.de": ["127.0.0.1"]})
    assert b"host: xn--mnchen-3ya.de:" in _fetch(handler, "http://München.de:{port}/", resolve=resolve)[0].lower()


def test_the_next_address_is_tried() -> None:
    resolve = _resolver({"files.example": ["127.0.0.2", "127.0.0.1"]})
    assert _fetch(_ok, "http://files.example:{port}/", allow_hosts=["files.example"], resolve=resolve)[0] == b"picture"


def test_rebinding_changes_nothing() -> None:
    """The connection goes to the address that was checked: nobody asks again, no name server knows the name."""
    answers = iter([["127.0.0.1"], ["127.0.0.9"]])

    async def resolve(host: str, port: int) -> list[str]:
        assert host == "rebind.invalid"
        return next(answers)

    url = "http://rebind.invalid:{port}/"
    assert _fetch(_ok, url, resolve=resolve)[0] == b"picture"
    with pytest.raises(InvalidRequest, match="not a public host"):
        _fetch(_ok, url, resolve=resolve)


def test_redirects_are_followed_and_each_is_checked() -> None:
    async def handler(head: str, writer: asyncio.StreamWriter) -> None:
        path = head.split()[1]
        hops = {"/long": "/0", "/0": "/1", "/1": "/2", "/2": "/3"}
        hops |= {"/private": "http://10.0.0.1/", "/file": "file:///x"}
        if path in hops:
            writer.write(_answer(status="302 Found", location=hops[path]))
        else:
            writer.write(_answer(head.encode()))

    resolve = _resolver({"a.example": ["127.0.0.1"]})
    options = {"allow_hosts": ["a.example"], "resolve": resolve}
    body, _ = _fetch(handler, "http://a.example:{port}/0", **options)
    assert b"GET /3 " in body
    assert b"host: a.example" in body.lower()
    with pytest.raises(InvalidRequest, match="redirects more than 3 times"):
        _fetch(handler, "http://a.example:{port}/long", **options)
    with pytest.raises(InvalidRequest, match=r"'10.0.0.1' is not a public host"):
        _fetch(handler, "http://a.example:{port}/private", **options)
    with pytest.raises(InvalidRequest, match="file"):
        _fetch(handler, "http://a.example:{port}/file", **options)


def test_a_redirect_to_a_name_with_a_private_address_is_refused() -> None:
    async def handler(head: str, writer: asyncio.StreamWriter) -> None:
        writer.write(_answer(status="307 Temporary Redirect", location="http://evil.example/"))

    known: dict[str, Any] = {"resolve": _resolver({"a.example": ["127.0.0.1"], "evil.example": ["127.0.0.1"]})}
    with pytest.raises(InvalidRequest, match=r"'evil.example'") as error:
        _fetch(handler, "http://a.example:{port}/", allow_hosts=["a.example"], field="inputs.0", **known)
    assert error.value.param == "inputs.0"


@pytest.mark.parametrize("declared", [True, False])
def test_a_large_body_is_cut_off(declared: bool) -> None:
    sent = 0

    async def handler(head: str, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        length = f"content-length: {1 << 30}\r\n" if declared else ""
        writer.write(f"HTTP/1.1 200 OK\r\n{length}connection: close\r\n\r\n".encode())
        for _ in range(1 << 14):
            writer.write(bytes(1 << 16))
            await writer.drain()
            sent += 1 << 16

    with pytest.raises(TooLarge, match="10000 bytes"):
        _fetch(handler)
    assert sent < 64 << 20


async def _drip(head: str, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


async def _silent(head: str, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def _slow_resolve(host: str, port: int) -> list[str]:
    await asyncio.sleep(60)
    return []


@pytest.mark.parametrize(
    "options", [{"handler": _drip}, {"handler": _silent}, {"handler": _ok, "resolve": _slow_resolve}]
)
def test_the_time_limit_covers_everything(options: Any) -> None:
    start = time.monotonic()
    with pytest.raises(InvalidRequest, match=r"within 0.4 seconds"):
        _fetch(**options, timeout_s=0.4)
    assert time.monotonic() - start < 3


BAD_ANSWERS = {
    "not found": _answer(status="404 Not Found"),
    "hangs up": b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf",
    "not HTTP": b"\x00\xff\r\n\r\n",
    "bad redirect": _answer(status="302 Found", location="http://[bad/"),
}


@pytest.mark.parametrize("answer", BAD_ANSWERS.values(), ids=list(BAD_ANSWERS))
def test_bad_answers_are_the_requests_fault(answer: bytes) -> None:
    async def handler(head: str, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    with pytest.raises(InvalidRequest, match="the URL"):
        _fetch(handler)


def test_what_cannot_be_reached() -> None:
    for url in ("http://127.0.0.1:1/", "http://gone.invalid/"):
        with pytest.raises(InvalidRequest, match="cannot be fetched: ConnectError"):
            _fetch(_ok, url, resolve=_resolver({"127.0.0.1": ["127.0.0.1"]}))


def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert _fetch(_ok)[0] == b"picture"


def test_compressed_answers_are_not_asked_for_nor_unpacked() -> None:
    async def handler(head: str, writer: asyncio.StreamWriter) -> None:
        assert "accept-encoding: identity" in head.lower()
        writer.write(_answer(b"\x1f\x8b raw", content_encoding="gzip"))

    assert _fetch(handler)[0] == b"\x1f\x8b raw"


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ssl.SSLContext]:
    """For files.example alone; the client trusts it."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=x"
    names = ["-addext", "subjectAltName=DNS:files.example", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    netguard._tls.cache_clear()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    yield context
    netguard._tls.cache_clear()


@pytest.mark.parametrize("host", ["files.example", "other.example"])
def test_tls_is_checked_against_the_name_not_the_address(certificate: ssl.SSLContext, host: str) -> None:
    async def main() -> tuple[bytes, str]:
        async with _server(_ok, certificate) as port:
            resolve = _resolver({host: ["127.0.0.1"]})
            return await netguard.fetch(f"https://{host}:{port}/", **OPTIONS, resolve=resolve)

    if host == "files.example":
        assert asyncio.run(main())[0] == b"picture"
    else:
        with pytest.raises(InvalidRequest, match="cannot be fetched: ConnectError"):
            asyncio.run(main())


def _post(handler: Handler, url: str = "http://127.0.0.1:{port}/hook", **options: Any) -> int:
    async def main() -> int:
        async with _server(handler) as port:
            known = {"timeout_s": 0.5, "allow_hosts": ["127.0.0.1"], **options}
            return await netguard.post(url.format(port=port), b"{}", {"x-id": "7"}, **known)

    return asyncio.run(main())


def test_post_gives_the_status_and_follows_nothing() -> None:
    async def handler(head: str, writer: asyncio.StreamWriter) -> None:
        assert head.startswith("POST /hook ")
        assert "x-id: 7" in head
        writer.write(_answer(status="302 Found", location="/elsewhere"))

    assert _post(handler) == 302


def test_post_is_guarded_and_limited_in_time() -> None:
    with pytest.raises(InvalidRequest, match="not a public host") as error:
        _post(_ok, allow_hosts=[], field="webhook")
    assert error.value.param == "webhook"
    with pytest.raises(Unavailable, match=r"within 0.5 seconds"):
        _post(_silent)
    with pytest.raises(Unavailable, match="ConnectError"):
        _post(_ok, "http://127.0.0.1:1/")
