from __future__ import annotations

import asyncio
import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from raydiance.serve import media, netguard
from raydiance.serve.edge_config import LimitsConfig, NetworkConfig
from raydiance.serve.errors import InvalidRequest, NotFound, TooLarge, UnsupportedMedia
from raydiance.serve.inputs import store_inputs
from raydiance.serve.request import Clip, GenerationRequest, VideoInput, given
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


def _grey(levels: int, **size: int) -> bytes:
    frames = np.zeros((levels, size.get("height", 32), size.get("width", 48), 3), np.uint8)
    return media.encode_video([frames], 8)


def _of(*inputs: dict[str, Any]) -> GenerationRequest:
    return GenerationRequest.model_validate({"inputs": list(inputs)})


def test_a_video_is_kept_as_it_came_and_looked_into(artifacts: ArtifactStore) -> None:
    data = _grey(9)
    for source in ({"b64": _b64(data)}, {"url": f"data:video/mp4;base64,{_b64(data)}"}):
        stored = _store(_of({"type": "video", "source": source}), artifacts, limits=LimitsConfig())
        [video] = stored.inputs
        assert isinstance(video, VideoInput)
        assert video.clip == Clip(width=48, height=32, num_frames=9, fps=8)
        assert video.source.artifact == f"{PREFIX}/input-0.mp4"
        assert asyncio.run(artifacts.get(f"{PREFIX}/input-0.mp4")) == data


def test_a_webm_keeps_its_suffix(artifacts: ArtifactStore) -> None:
    data = media.encode_video([np.zeros((3, 32, 48, 3), np.uint8)], 8, "webm")
    stored = _store(_of({"type": "video", "source": {"b64": _b64(data)}}), artifacts, limits=LimitsConfig())
    assert given(stored, "video-to-video") == [("video", f"{PREFIX}/input-0.webm")]


def test_masks_are_grey_and_transparency_is_painted(artifacts: ArtifactStore) -> None:
    def mask(mode: str, left: Any, right: Any) -> dict[str, Any]:
        image = Image.new(mode, (16, 8), left)
        image.paste(right, (8, 0, 16, 8))
        file = io.BytesIO()
        image.save(file, "PNG")
        return {"type": "mask", "source": {"b64": _b64(file.getvalue())}}

    clear, solid = (90, 90, 90, 0), (90, 90, 90, 255)
    request = _of(mask("L", 0, 255), mask("RGBA", solid, clear), mask("RGBA", (0, 0, 0, 255), (255, 255, 255, 255)))
    _store(request, artifacts, limits=LimitsConfig())
    for i in range(3):
        kept = Image.open(io.BytesIO(asyncio.run(artifacts.get(f"{PREFIX}/input-{i}.png"))))
        assert (kept.mode, kept.getpixel((0, 0)), kept.getpixel((15, 0))) == ("L", 0, 255)


def test_a_mask_may_be_a_video(artifacts: ArtifactStore) -> None:
    request = _of({"type": "mask", "source": {"b64": _b64(_grey(5))}})
    stored = _store(request, artifacts, limits=LimitsConfig())
    assert given(stored, "video-to-video") == [("mask", f"{PREFIX}/input-0.mp4")]


def test_several_references_and_a_video_are_stored_in_order(artifacts: ArtifactStore) -> None:
    reference = {"type": "image", "role": "reference", "source": {"b64": _b64(_png())}}
    text = {"type": "text", "text": "a cat"}
    video = {"type": "video", "source": {"b64": _b64(_grey(5))}}
    stored = _store(_of(reference, text, video, reference), artifacts, limits=LimitsConfig())
    keys = [f"{PREFIX}/input-{i}" for i in (0, 2, 3)]
    expected = [("reference", f"{keys[0]}.png"), ("video", f"{keys[1]}.mp4"), ("reference", f"{keys[2]}.png")]
    assert given(stored, "video-to-video") == expected


@pytest.mark.parametrize("kind", ["video", "mask"])
@pytest.mark.parametrize(
    ("source", "error"),
    [
        ({"b64": ""}, InvalidRequest),
        ({"b64": "not base64!"}, InvalidRequest),
        ({"b64": _b64(b"neither picture nor video")}, UnsupportedMedia),
        ({"b64": _b64(_grey(5)[:-100])}, InvalidRequest),
        ({"b64": _b64(_grey(60))}, TooLarge),
        ({"b64": "A" * 1_000_000}, TooLarge),
        ({"url": "data:video/mp4,raw"}, InvalidRequest),
        ({"url": "http://10.0.0.1/a.mp4"}, InvalidRequest),
        ({"url": "file:///etc/passwd"}, InvalidRequest),
        ({"artifact": "jobs/other/0.mp4"}, InvalidRequest),
    ],
)
def test_a_bad_video_is_named_and_nothing_stays(
    artifacts: ArtifactStore, tmp_path: Path, kind: str, source: dict[str, str], error: type[Exception]
) -> None:
    limits = LimitsConfig(max_video_frames=50, max_video_bytes=100_000)
    good = {"type": "image", "source": {"b64": _b64(_png())}}
    with pytest.raises(error) as raised:
        _store(_of(good, {"type": kind, "source": source}), artifacts, limits=limits)
    assert raised.value.param == "inputs.1.source"  # type: ignore[attr-defined]
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_what_the_server_tells_is_not_taken_from_a_client(artifacts: ArtifactStore) -> None:
    clip = {"width": 48, "height": 32, "num_frames": 5, "fps": 8}
    request = _of({"type": "video", "source": {"b64": _b64(_grey(5))}, "clip": clip})
    with pytest.raises(InvalidRequest, match="clip") as error:
        _store(request, artifacts, limits=LimitsConfig())
    assert error.value.param == "inputs.0.clip"


def test_urls_of_videos_have_the_bound_of_videos(artifacts: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    async def fetch(url: str, **options: Any) -> tuple[bytes, str]:
        seen.append(options["max_bytes"])
        return _grey(5), "video/mp4"

    monkeypatch.setattr(netguard, "fetch", fetch)
    limits = LimitsConfig(max_image_bytes=5000, max_video_bytes=70_000)
    kinds = ("video", "mask")
    request = _of(*[{"type": kind, "source": {"url": "https://a.example/x"}} for kind in kinds])
    _store(request, artifacts, limits=limits)
    assert seen == [70_000, 70_000]
