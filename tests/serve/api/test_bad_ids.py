"""Ids, cursors and event numbers that are none: refused before they reach a database."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

Refused = Callable[..., None]


@pytest.mark.parametrize("job_id", ["video_0", "%00", "a%00b", "..%2f..%2fetc", "%ff", "x" * 300, "a%20b", "🦊"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/jobs/{}"),
        ("DELETE", "/v1/jobs/{}"),
        ("POST", "/v1/jobs/{}/cancel"),
        ("GET", "/v1/jobs/{}/why"),
        ("GET", "/v1/jobs/{}/events"),
        ("GET", "/v1/jobs/{}/content"),
        ("GET", "/v1/videos/{}"),
        ("DELETE", "/v1/videos/{}"),
        ("GET", "/v1/videos/{}/content"),
        ("GET", "/v1/groups/{}"),
        ("DELETE", "/v1/groups/{}"),
    ],
)
def test_ids_that_are_none(http: httpx.Client, job_id: str, method: str, path: str) -> None:
    answer = http.request(method, path.format(job_id))
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"
    assert len(answer.text) < 400


@pytest.mark.parametrize(
    ("query", "status", "param", "says"),
    [
        ("limit=0", 400, "limit", "limit must be at least 1 (got '0')"),
        ("limit=101", 400, "limit", "limit must be at most 100 (got '101')"),
        ("limit=x", 400, "limit", "limit must be an integer (got 'x')"),
        ("order=up", 400, "order", "order must be asc or desc (got 'up')"),
        ("after=video_0", 404, "after", "no job"),
        ("after=%00", 404, "after", "no job"),
        ("state=failed", 400, "state", "unknown parameter 'state'; known: after, limit, order"),
        ("limits=1", 400, "limits", "unknown parameter 'limits'; did you mean 'limit'?"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/videos"])
def test_pages(http: httpx.Client, refused: Refused, path: str, query: str, status: int, param: str, says: str) -> None:
    refused(http.get(f"{path}?{query}"), status, param, says)


@pytest.mark.parametrize("last_id", ["x", "-1", "1.5", "9" * 30, str(2**63)])
def test_event_ids(http: httpx.Client, refused: Refused, last_id: str) -> None:
    job = http.post("/v1/jobs", json={"prompt": "a cat", "num_frames": 1}).json()
    answer = http.get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": last_id})
    refused(answer, 400, "Last-Event-ID")
    refused(http.get(f"/v1/jobs/{job['id']}/events", params={"after": last_id}), 400, "after")
