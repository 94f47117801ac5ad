"""Files by range, against the whole file."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from raydiance.serve.api.content import Unsatisfiable, parse_range


@pytest.fixture(scope="module")
def url(server: Any, http: httpx.Client) -> str:
    job = http.post("/v1/jobs", json={"prompt": "a cat", "num_frames": 5, "task": "text-to-video"}).json()
    server.until(job["id"])
    return f"/v1/jobs/{job['id']}/content"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("bytes=0-0", (0, 1)),
        ("bytes=10-", (10, 100)),
        ("bytes=-10", (90, 100)),
        ("bytes=-1000", (0, 100)),
        ("bytes=90-1000", (90, 100)),
        ("bytes=99-99", (99, 100)),
        ("bytes=5-4", None),
        ("bytes=-", None),
        ("bytes=0-1,5-6", None),
        ("bytes=x-y", None),
        ("items=0-1", None),
        ("bytes=--1", None),
        (f"bytes={'9' * 40}-", None),
    ],
)
def test_parse_range(header: str | None, expected: tuple[int, int] | None) -> None:
    assert parse_range(header, 100) == expected


@pytest.mark.parametrize("header", ["bytes=100-", "bytes=100-200", "bytes=-0"])
def test_ranges_behind_the_end(header: str) -> None:
    with pytest.raises(Unsatisfiable):
        parse_range(header, 100)


def test_whole_file(http: httpx.Client, url: str) -> None:
    whole = http.get(url)
    assert (whole.status_code, whole.headers["content-type"]) == (200, "video/mp4")
    assert whole.headers["accept-ranges"] == "bytes"
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert re.fullmatch(r'inline; filename="video_[0-9a-f]{32}-0\.mp4"', whole.headers["content-disposition"])
    head = http.head(url)
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-length", "etag", "content-type"):
        assert head.headers[name] == whole.headers[name]


@pytest.mark.parametrize("header", ["bytes=0-99", "bytes=100-", "bytes=-7"])
def test_parts(http: httpx.Client, url: str, header: str) -> None:
    whole = http.get(url).content
    part = http.get(url, headers={"Range": header})
    start, end = parse_range(header, len(whole)) or (0, 0)
    assert (part.status_code, part.content) == (206, whole[start:end])
    assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{len(whole)}"
    assert part.headers["content-length"] == str(end - start)


def test_a_download_is_put_together_from_parts(http: httpx.Client, url: str) -> None:
    whole, parts = http.get(url).content, b""
    while len(parts) < len(whole):
        parts += http.get(url, headers={"Range": f"bytes={len(parts)}-{len(parts) + 500}"}).content
    assert parts == whole


def test_range_behind_the_end(http: httpx.Client, url: str) -> None:
    size = len(http.get(url).content)
    answer = http.get(url, headers={"Range": f"bytes={size}-"})
    assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{size}")
    assert answer.json()["error"]["code"] == "range_not_satisfiable"


def test_validators(http: httpx.Client, url: str) -> None:
    etag = http.get(url).headers["etag"]
    for value in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        unchanged = http.get(url, headers={"If-None-Match": value})
        assert (unchanged.status_code, unchanged.content) == (304, b"")
    assert http.get(url, headers={"If-None-Match": '"other"'}).status_code == 200
    assert http.get(url, headers={"If-Range": etag, "Range": "bytes=0-1"}).status_code == 206
    assert http.get(url, headers={"If-Range": '"other"', "Range": "bytes=0-1"}).status_code == 200


def test_a_file_that_was_swept(server: Any, http: httpx.Client) -> None:
    job = http.post("/v1/jobs", json={"prompt": "a cat", "num_frames": 1}).json()
    [artifact] = server.until(job["id"]).artifacts
    (server.service.artifacts._folder / artifact.key).unlink()
    answer = http.get(f"/v1/jobs/{job['id']}/content")
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, "this content is no longer kept")


@pytest.mark.parametrize("query", ["index=1", "variant=thumbnail", "index=-1", "index=x", "variant=video", "size=1"])
def test_what_a_job_does_not_have(server: Any, http: httpx.Client, query: str) -> None:
    job = http.post("/v1/jobs", json={"prompt": "a cat", "num_frames": 1}).json()
    server.until(job["id"])
    answer = http.get(f"/v1/jobs/{job['id']}/content?{query}")
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] in ("index", "variant", "size")
