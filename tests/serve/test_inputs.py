from __future__ import annotations

import asyncio
import base64
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from raydiance.serve import netguard
from raydiance.serve.config import LimitsConfig, NetworkConfig
from raydiance.serve.errors import InvalidRequest, NotFound, TooLarge, UnsupportedMedia
from raydiance.serve.inputs import store_inputs
from raydiance.serve.request import GenerationRequest, given
from raydiance.serve.storage.artifacts import ArtifactStore

PREFIX = "jobs/image_1"
LIMITS = LimitsConfig(max_image_bytes=4096)


@pytest.fixture
def artifacts(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(str(tmp_path / "artifacts"))


def _png(colour: str = "red") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (16, 8), colour).save(file, "PNG")
    return file.getvalue()


def _request(*sources: dict[str, str], **values: Any) -> GenerationRequest:
    inputs = [{"type": "image", "role": "init", "source": s} for s in sources]
    return GenerationRequest.model_validate({"inputs": inputs, **values})


def _store(request: GenerationRequest, artifacts: ArtifactStore, **options: Any) -> GenerationRequest:
    options = {"prefix": PREFIX, "limits": LIMITS, "network": NetworkConfig(), **options}
    return asyncio.run(store_inputs(request, artifacts=artifacts, **options))


def _colour(artifacts: ArtifactStore, key: str) -> Any:
    image = Image.open(io.BytesIO(asyncio.run(artifacts.get(key))))
    assert image.format == "PNG"
    return image.getpixel((0, 0))


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_base64_and_data_urls_are_stored_as_png(artifacts: ArtifactStore) -> None:
    file = io.BytesIO()
    Image.new("RGB", (16, 8), "blue").save(file, "WEBP", lossless=True)
    wrapped = base64.encodebytes(_png()).decode()
    request = _request(
        {"b64": wrapped},
        {"url": f"data:image/webp;base64,{_b64(file.getvalue())}"},
        {"url": f"DATA:;charset=x;base64,{_b64(_png('lime'))}"},
        prompt="a cat",
    )
    stored = _store(request, artifacts)
    assert stored.prompt == "a cat"
    keys = [i.source.artifact for i in stored.inputs]  # type: ignore[union-attr]
    assert keys == [f"{PREFIX}/input-{i}.png" for i in range(3)]
    assert [_colour(artifacts, str(k)) for k in keys] == [(255, 0, 0), (0, 0, 255), (0, 255, 0)]
    assert given(stored, "image-to-image") == [("init", key) for key in keys]


def test_urls_are_fetched_under_the_guard(artifacts: ArtifactStore) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = _png("blue")
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        writer.close()

    async def main(allow_hosts: list[str]) -> GenerationRequest:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            request = _request({"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/a.png"})
            network = NetworkConfig(allow_hosts=allow_hosts)
            return await store_inputs(request, prefix=PREFIX, limits=LIMITS, network=network, artifacts=artifacts)

    asyncio.run(main(["127.0.0.1"]))
    assert _colour(artifacts, f"{PREFIX}/input-0.png") == (0, 0, 255)
    with pytest.raises(InvalidRequest, match="not a public host") as error:
        asyncio.run(main([]))
    assert error.value.param == "inputs.0.source"


def test_the_limits_reach_the_fetch(artifacts: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    async def fetch(url: str, **options: Any) -> tuple[bytes, str]:
        seen.update(options, url=url)
        return _png(), "image/png"

    monkeypatch.setattr(netguard, "fetch", fetch)
    limits = LimitsConfig(max_image_bytes=5000, fetch_timeout_s=3)
    _store(_request({"url": "https://a.example/x"}), artifacts, limits=limits)
    expected = {"max_bytes": 5000, "timeout_s": 3, "allow_hosts": [], "field": "inputs.0.source"}
    assert seen == {"url": "https://a.example/x", **expected}


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ({"b64": "not base64!"}, InvalidRequest),
        ({"b64": "AAAAA"}, InvalidRequest),
        ({"b64": "ä"}, InvalidRequest),
        ({"b64": _b64(b"no picture")}, UnsupportedMedia),
        ({"b64": _b64(_png()[:50])}, InvalidRequest),
        ({"b64": _b64(bytes(4097))}, TooLarge),
        ({"b64": "A" * 100_000}, TooLarge),
        ({"url": "data:image/png,raw"}, InvalidRequest),
        ({"url": "data:;base64"}, InvalidRequest),
        ({"url": "data:image/png;base64," + "A" * 100_000}, TooLarge),
        ({"url": "ftp://example.com/a.png"}, InvalidRequest),
        ({"url": "http://localhost/a.png"}, InvalidRequest),
        ({"artifact": "jobs/other/0.png"}, InvalidRequest),
    ],
)
def test_a_bad_input_is_named_and_nothing_stays(
    artifacts: ArtifactStore, tmp_path: Path, source: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error) as raised:
        _store(_request({"b64": _b64(_png())}, source), artifacts)
    assert raised.value.param == "inputs.1.source"  # type: ignore[attr-defined]
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_artifacts_are_copied_where_they_are_allowed(artifacts: ArtifactStore) -> None:
    asyncio.run(artifacts.put("jobs/a/0.png", _png()))
    _store(_request({"artifact": "jobs/a/0.png"}), artifacts, allow_artifacts=True)
    asyncio.run(artifacts.delete_prefix("jobs/a"))
    assert _colour(artifacts, f"{PREFIX}/input-0.png") == (255, 0, 0)
    for key in ("jobs/a/0.png", "../secret"):
        with pytest.raises(InvalidRequest, match="artifact") as error:
            _store(_request({"artifact": key}), artifacts, allow_artifacts=True)
        assert error.value.param == "inputs.0.source"


def test_text_stays(artifacts: ArtifactStore) -> None:
    text = GenerationRequest.model_validate({"inputs": [{"type": "text", "text": "a cat"}]})
    assert _store(text, artifacts) == text


def test_the_webhook_is_checked_first(artifacts: ArtifactStore) -> None:
    with pytest.raises(InvalidRequest) as error:
        _store(_request({"b64": _b64(_png())}, webhook="http://10.0.0.1/"), artifacts)
    assert error.value.param == "webhook"
    with pytest.raises(NotFound):
        asyncio.run(artifacts.get(f"{PREFIX}/input-0.png"))
    network = NetworkConfig(allow_hosts=["10.0.0.1"])
    assert _store(_request(webhook="http://10.0.0.1/"), artifacts, network=network).webhook == "http://10.0.0.1/"
