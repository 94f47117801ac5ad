"""Whatever is sent: a 4xx that names field, value and limit, and the next request works."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from PIL import Image

GENERATIONS, EDITS, VIDEOS, JOBS = "/v1/images/generations", "/v1/images/edits", "/v1/videos", "/v1/jobs"
MULTIPART = {"content-type": "multipart/form-data; boundary=b"}
JSON = {"content-type": "application/json"}
Refused = Callable[..., None]


def bomb(side: int) -> bytes:
    """A small PNG whose header promises a large picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = zlib.compress(b"\0" * 100)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def png(size: int) -> bytes:
    file = io.BytesIO()
    Image.effect_noise((size, size), 50).convert("RGB").save(file, "PNG", compress_level=0)
    return file.getvalue()


@pytest.fixture(autouse=True)
def _the_next_request_works(http: httpx.Client) -> Any:
    yield
    answer = http.post(JOBS, json={"prompt": "a cat", "num_frames": 1, "num_inference_steps": 1})
    assert answer.status_code == 201, answer.text


VALUES = [
    # field, value, words of the message
    ("prompt", "", ["prompt is empty"]),
    ("prompt", "   ", ["prompt is empty"]),
    ("prompt", "x" * 100_000, ["100000", "8000"]),
    ("prompt", 5, ["string", "5"]),
    ("prompt", None, ["required"]),
    ("prompt", "a\0b", ["NUL"]),
    ("prompt", ["a"], ["string"]),
    ("num_inference_steps", 0, ["=0", "1", "200"]),
    ("num_inference_steps", 10_000, ["=10000", "200"]),
    ("num_inference_steps", 2.5, ["2.5"]),
    ("num_inference_steps", 10**30, ["1" + "0" * 30, "64 bits"]),
    ("guidance_scale", -1, ["=-1", "0", "100"]),
    ("guidance_scale", "nan", ["finite", "nan"]),
    ("guidance_scale", "inf", ["finite"]),
    ("seed", -1, ["=-1"]),
    ("seed", True, ["number", "true"]),
    ("seed", 2**63, ["64 bits"]),
    ("negative_prompt", "x" * 9_000, ["9000", "8000"]),
    ("metadata", {"a": "x" * 600}, ["512"]),
    ("metadata", "text", ["mapping", "a string"]),
    ("steps", 4, ["unknown parameter 'steps'"]),
    ("x" * 300, 4, ["unknown parameter"]),
]


@pytest.mark.parametrize("path", [GENERATIONS, VIDEOS, JOBS])
@pytest.mark.parametrize(("field", "value", "words"), VALUES, ids=[f"{v[0][:20]}-{i}" for i, v in enumerate(VALUES)])
def test_values(http: httpx.Client, refused: Refused, path: str, field: str, value: Any, words: list[str]) -> None:
    if path == JOBS and value is None:
        words = ["prompt is empty"]
    answer = http.post(path, json={"prompt": "a cat", field: value})
    refused(answer, 400, field if len(field) < 80 else f"{field[:80]}…", *words)


IMAGE_VALUES = [
    ("n", 0, ["1", "0"]),
    ("n", 11, ["10", "11"]),
    ("n", "many", ["integer", "many"]),
    ("size", "100x64", ["width=100", "16"]),
    ("size", "64x100", ["height=100", "16"]),
    ("size", "0x64", ["width=0"]),
    ("size", "2048x64", ["2048", "1024"]),
    ("size", "huge", ["huge", "WIDTHxHEIGHT"]),
    ("size", "999999x64", ["WIDTHxHEIGHT"]),
    ("quality", "hd", ["hd", "auto"]),
    ("background", "transparent", ["transparent", "opaque"]),
    ("output_format", "gif", ["gif", "png", "webp", "jpeg"]),
    ("output_format", "svg", ["svg"]),
    ("output_compression", 50, ["50", "jpeg and webp"]),
    ("output_compression", 101, ["100", "101"]),
    ("response_format", "file", ["file", "url"]),
    ("partial_images", 2, ["stream=true"]),
    ("partial_images", 4, ["3", "4"]),
    ("style", "vivid", ["style is not supported"]),
    ("complexity", "high", ["complexity is not supported"]),
    ("mask", "data:image/png;base64,AAAA", ["takes no mask"]),
    ("stream", "perhaps", ["true or false", "perhaps"]),
    ("user", "u" * 600, ["512"]),
    ("num_frames", 5, ["unknown parameter 'num_frames'"]),
    ("model", "dall-e-3", ["dall-e-3", "tiny"]),
]


@pytest.mark.parametrize("path", [GENERATIONS, EDITS])
@pytest.mark.parametrize(("field", "value", "words"), IMAGE_VALUES, ids=[f"{v[0]}={v[1]!s:.12}" for v in IMAGE_VALUES])
def test_image_values(
    http: httpx.Client, refused: Refused, picture: bytes, path: str, field: str, value: Any, words: list[str]
) -> None:
    if path == EDITS:
        answer = http.post(path, data={"prompt": "a cat", field: value}, files={"image": picture})
    else:
        answer = http.post(path, json={"prompt": "a cat", field: value})
    refused(answer, 404 if field == "model" else 400, field, *words)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"seconds": "soon"}, "seconds", ["number", "soon"]),
        ({"seconds": 0}, "seconds", ["greater than 0"]),
        ({"seconds": 1e300}, "seconds", ["3600"]),
        ({"seconds": 3000}, "seconds", ["num_frames=", "1025"]),
        ({"seconds": 2, "num_frames": 9}, "seconds", ["not both"]),
        ({"num_frames": 6}, "num_frames", ["num_frames=6", "4k+1", "5 and 9"]),
        ({"num_frames": 0}, "num_frames", ["num_frames=0"]),
        ({"fps": 0}, "fps", ["fps=0"]),
        ({"seconds": 1, "fps": 2**62}, "num_frames", ["num_frames"]),
        ({"output_format": "gif"}, "output_format", ["gif", "mp4", "webm"]),
        ({"size": "720p"}, "size", ["720p"]),
        ({"size": "1024x1024", "num_frames": 1025}, "size", ["tokens", "200000"]),
        ({"webhook": "https://example.com/"}, "webhook", ["webhooks.secret"]),
        ({"previews": 9}, "previews", ["3", "9"]),
        ({"n": 2}, "n", ["unknown parameter 'n'"]),
        ({"input_reference": {"file_id": "file-1"}}, "input_reference.file_id", ["file_id", "no files API"]),
        ({"input_reference": {"href": "x"}}, "input_reference.href", ["image_url"]),
        ({"input_reference": {"url": "x", "b64": "AAAA"}}, "input_reference", ["a file, a URL"]),
        ({"input_reference": ["a", "b"]}, "input_reference", ["2 values", "the limit is 1"]),
        ({"init": "https://example.com/a.png"}, "init", ["takes no image of role 'init'"]),
        ({"mask": "https://example.com/a.png"}, "mask", ["cannot do 'video-to-video'"]),
        ({"video": {"id": "video_1"}}, "video.id", ["/v1/videos/edits"]),
        ({"audio": True}, "audio", ["makes no sound"]),
        ({"true_cfg_scale": 4}, "true_cfg_scale", ["nothing that model 'tiny'"]),
        ({"stg_scale": 4}, "stg_scale", ["nothing that model 'tiny'"]),
        ({"strength": 0.5}, "strength", ["is for image-to-image"]),
        ({"input_reference": 5}, "input_reference", ["5"]),
        ({"input_reference": {"image_url": "ftp://example.com/a.png"}}, "input_reference", ["ftp"]),
        ({"input_reference": {"image_url": "http://127.0.0.1/a.png"}}, "input_reference", []),
        ({"input_reference": {"image_url": "http://169.254.169.254/latest"}}, "input_reference", []),
        ({"input_reference": {"image_url": "https://[::1]/a.png"}}, "input_reference", []),
        ({"input_reference": {"image_url": "data:image/png;base64,####"}}, "input_reference", ["base64"]),
    ],
)
def test_video_values(
    http: httpx.Client, refused: Refused, fields: dict[str, Any], param: str, words: list[str]
) -> None:
    answer = http.post(VIDEOS, json={"prompt": "a cat", **fields})
    if param == "num_frames" and "seconds" in fields:
        param = "seconds"
    refused(answer, 400, param, *words)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"task": "text-to-music"}, "task"),
        ({"height": 100}, "height"),
        ({"strength": 0.5}, "strength"),
        ({"task": "image-to-video"}, "inputs"),
        ({"n": 11}, "n"),
        ({"output": {"format": "mp4"}, "num_frames": 1}, "output.format"),
        ({"output": {"sound": True}}, "output.sound"),
        ({"inputs": [{"type": "image", "source": {"artifact": "other/0.png"}}]}, "inputs.0.source"),
        ({"inputs": [{"type": "image", "source": {"url": "http://10.0.0.1/a"}}]}, "inputs.0.source"),
        ({"inputs": [{"type": "image", "source": {}}]}, "inputs.0.source"),
        ({"inputs": [{"type": "sound"}]}, "inputs.0.type"),
        ({"inputs": "all"}, "inputs"),
        ({"inputs": [{"type": "mask", "source": {"b64": "AAAA"}}]}, "inputs"),
        ({"inputs": [{"type": "video", "source": {"b64": 5}}]}, "inputs.0.source.b64"),
        ({"inputs": [{"type": "video", "role": "next", "source": {"b64": "A"}}]}, "inputs.0.role"),
    ],
)
def test_native_values(http: httpx.Client, refused: Refused, fields: dict[str, Any], param: str) -> None:
    refused(http.post(JOBS, json={"prompt": "a cat", **fields}), 400, param)


@pytest.mark.parametrize(
    ("content", "headers", "status", "words"),
    [
        (b"", {}, 415, ["missing"]),
        (b'{"prompt": "a"}', {"content-type": "text/plain"}, 415, ["text/plain", "application/json"]),
        (b"<a/>", {"content-type": "x" * 500}, 415, ["send application/json"]),
        (b"", JSON, 400, ["not valid JSON"]),
        (b'{"prompt": "a"', JSON, 400, ["not valid JSON"]),
        (b"[1]", JSON, 400, ["object", "list"]),
        (b"null", JSON, 400, ["object"]),
        (b'{"prompt": "\xff"}', JSON, 400, ["UTF-8", "0xff"]),
        (b'{"prompt": "a", "guidance_scale": NaN}', JSON, 400, ["guidance_scale=nan"]),
        (b'{"prompt": "a", "guidance_scale": -Infinity}', JSON, 400, ["guidance_scale=-inf"]),
        (b'{"prompt": "a", "guidance_scale": 1e999}', JSON, 400, ["guidance_scale=inf"]),
        (b'{"prompt": "a", "seed": 1' + b"0" * 5000 + b"}", JSON, 400, ["not valid JSON"]),
        (b'{"prompt": "\\ud800"}', JSON, 400, ["surrogate"]),
        (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", JSON, 400, ["nested"]),
        (b'{"prompt": ' + b"[" * 50 + b"]" * 50 + b"}", JSON, 400, ["nested"]),
        (b'{"prompt": "a", "prompt": "b"}', JSON, 400, ["'prompt' is given twice"]),
        (b"prompt=a&prompt=b", {"content-type": "application/x-www-form-urlencoded"}, 400, ["twice"]),
        (b"prompt=%ff", {"content-type": "application/x-www-form-urlencoded"}, 400, ["malformed"]),
        (b"&".join([b"a=1"] * 200), {"content-type": "application/x-www-form-urlencoded"}, 400, ["malformed"]),
        (b"a", {"content-type": "multipart/form-data"}, 400, ["boundary"]),
        (b"nonsense", MULTIPART, 400, ["malformed"]),
        (b"", MULTIPART, 400, ["cut short"]),
        (b'--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\na cat', MULTIPART, 400, ["cut short"]),
        (b"--b\r\nContent-Disposition: form-data\r\n\r\na\r\n--b--\r\n", MULTIPART, 400, ["no name"]),
        (b'--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\n\xff\r\n--b--\r\n', MULTIPART, 400, ["UTF-8"]),
        (b'--b\r\nContent-Disposition: form-data; name="a[b][c]"\r\n\r\na\r\n--b--\r\n', MULTIPART, 400, ["a[b][c]"]),
    ],
)
@pytest.mark.parametrize("path", [GENERATIONS, JOBS])
def test_bodies(
    http: httpx.Client, path: str, content: bytes, headers: dict[str, str], status: int, words: list[str]
) -> None:
    answer = http.post(path, content=content, headers=headers)
    assert answer.status_code == status, answer.text
    assert all(word in answer.json()["error"]["message"] for word in words), answer.text
    assert len(answer.text) < 600


def test_too_many_parts(http: httpx.Client, refused: Refused, picture: bytes) -> None:
    many = {f"f{i}": (None, "1") for i in range(200)}
    refused(http.post(VIDEOS, files=many), 413, "f128", "128 form fields")
    files = [("image", ("a.png", picture))] * 17
    refused(http.post(EDITS, data={"prompt": "a cat"}, files=files), 413, "image", "16 files")


@pytest.mark.parametrize("path", [EDITS, VIDEOS, JOBS])
@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (b"", 400, ["empty"]),
        (b"not an image", 415, ["PNG"]),
        (b"<svg/>", 415, ["PNG"]),
        (png(64)[:500], 400, ["truncated"]),
        (bomb(8_000), 413, ["8000x8000", "1000000"]),
        (bomb(30_000), 413, ["more pixels"]),
        (png(700), 413, ["1048576", "limits.max_image_bytes"]),
    ],
    ids=["empty", "text", "svg", "truncated", "bomb", "huge bomb", "large"],
)
def test_files(http: httpx.Client, refused: Refused, path: str, data: bytes, status: int, words: list[str]) -> None:
    name = "image" if path == EDITS else "input_reference"
    answer = http.post(path, data={"prompt": "a cat"}, files={name: ("a.png", data)})
    is_native = path == JOBS and data and len(data) <= 1 << 20  # decoded where the native request names it
    refused(answer, status, "inputs.0.source" if is_native else name, *words)


def test_files_where_none_or_one_is_taken(http: httpx.Client, refused: Refused, picture: bytes) -> None:
    fields = {"prompt": "a cat"}
    two = [("image[]", ("a.png", picture)), ("image[]", ("b.png", picture))]
    refused(http.post(EDITS, data=fields, files=two), 400, "image", "2 inputs of role 'init'", "the limit is 1")
    refused(
        http.post(EDITS, json={**fields, "image": ["https://a.test/a", "https://a.test/b"]}),
        400,
        "image",
        "2 inputs of role",
        "limit is 1",
    )
    refused(http.post(EDITS, json={**fields, "image": "a"}), 400, "image", "must be a file, a URL")
    refused(http.post(EDITS, data=fields), 400, "image", "required")
    both = {"image": ("a.png", picture), "mask": ("b.png", picture)}
    refused(http.post(EDITS, data=fields, files=both), 400, "mask", "takes no mask")
    refused(http.post(VIDEOS, data=fields, files={"photo": ("a.png", picture)}), 400, "photo", "input_reference")
    refused(http.post(GENERATIONS, data=fields, files={"image": picture}), 400, "image", "takes no image")
    data_url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    sent_twice = {**fields, "input_reference[image_url]": data_url}
    refused(http.post(VIDEOS, data=sent_twice, files={"input_reference": picture}), 400, "input_reference", "give one")


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "ü"])
def test_keys_that_are_none(http: httpx.Client, refused: Refused, key: str) -> None:
    headers = {"Idempotency-Key": key.encode("latin-1")}
    answer = http.post(JOBS, json={"prompt": "a cat"}, headers=headers)
    refused(answer, 400, "Idempotency-Key", "1 to 255")
