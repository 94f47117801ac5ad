"""`/v1/jobs`: the native way in, over real HTTP."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from raydiance.serve.api import sse
from raydiance.serve.api.views import JobView
from raydiance.serve.storage.job import JobState

IMAGE = {"prompt": "a cat", "num_frames": 1}
Frame = tuple[int, str, dict[str, Any]]


def create(http: httpx.Client, **request: Any) -> dict[str, Any]:
    answer = http.post("/v1/jobs", json={**IMAGE, **request})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def read_events(http: httpx.Client, job_id: str, limit: int | None = None, **options: Any) -> list[Frame]:
    """Up to the end of the stream; with a limit, the connection is cut after as many events."""
    frames: list[Frame] = []
    values: dict[str, str] = {}
    with http.stream("GET", f"/v1/jobs/{job_id}/events", **options) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            name, _, value = line.partition(": ")
            if line == "" and "data" in values:
                frames.append((int(values["id"]), values["event"], json.loads(values["data"])))
                values = {}
                if len(frames) == limit:
                    break
            elif name:
                values[name] = value
    return frames


def test_a_job_is_shown_as_documented(server: Any, http: httpx.Client) -> None:
    made = create(http, n=2, seed=3, metadata={"shelf": "3"})
    server.until(made["id"])
    shown = http.get(f"/v1/jobs/{made['id']}").json()
    assert set(shown) == set(JobView.model_fields)
    assert (shown["status"], shown["kind"], shown["task"], shown["n"]) == ("completed", "image", "text-to-image", 2)
    assert shown["metadata"] == {"shelf": "3"}
    files = [http.get(output["url"]).content for output in shown["outputs"]]
    assert len(set(files)) == 2
    assert [output["seed"] for output in shown["outputs"]] == [3, 4]


@pytest.mark.parametrize("name", ["first_frame", "input_reference", "init", "image"])
def test_a_form_with_a_file(server: Any, http: httpx.Client, picture: bytes, name: str) -> None:
    fields = {"prompt": "a cat", "seed": "3", "output[format]": "webp", "metadata[shelf]": "3", "metadata[row]": "4"}
    video = name in ("first_frame", "input_reference")
    if video:
        fields["output[format]"] = "webm"
    made = http.post("/v1/jobs", data=fields, files={name: ("a.png", picture)}).json()
    assert made["task"] == ("image-to-video" if video else "image-to-image")
    assert made["metadata"] == {"shelf": "3", "row": "4"}
    assert server.until(made["id"]).artifacts[0].content_type == ("video/webm" if video else "image/webp")


def test_inputs_in_json(http: httpx.Client, picture: bytes) -> None:
    source = {"b64": base64.b64encode(picture).decode()}
    inputs = [{"type": "image", "role": "init", "source": source}, {"type": "text", "text": "a cat"}]
    made = http.post("/v1/jobs", json={"inputs": inputs}).json()
    assert (made["task"], made["parameters"]["prompt"]) == ("image-to-image", "a cat")


def test_pages_by_kind(http: httpx.Client) -> None:
    made = [create(http)["id"] for _ in range(3)]
    video = create(http, num_frames=5, task="text-to-video")["id"]
    page = http.get("/v1/jobs", params={"limit": 2}).json()
    assert (page["object"], page["has_more"]) == ("list", True)
    assert [job["id"] for job in page["data"]] == [video, made[2]]
    rest = http.get("/v1/jobs", params={"limit": 2, "after": page["last_id"], "kind": "image"}).json()
    assert [job["id"] for job in rest["data"]] == made[1::-1]
    upwards = http.get("/v1/jobs", params={"order": "asc", "after": made[0], "limit": 1}).json()
    assert upwards["first_id"] == upwards["last_id"] == made[1]


def test_cancel_and_delete(server: Any, http: httpx.Client) -> None:
    for request in (("POST", "/cancel"), ("DELETE", "")):
        job_id = create(http, prompt="hang")["id"]
        server.until(job_id, JobState.IN_PROGRESS)
        cancelled = http.request(request[0], f"/v1/jobs/{job_id}{request[1]}").json()
        assert (cancelled["id"], cancelled["status"]) == (job_id, "cancelled")
        assert http.get(f"/v1/jobs/{job_id}").json()["status"] == "cancelled"
        assert http.get(f"/v1/jobs/{job_id}/content").status_code == 404
        assert http.post(f"/v1/jobs/{job_id}/cancel").json()["status"] == "cancelled"
        removed = http.delete(f"/v1/jobs/{job_id}").json()
        assert removed == {"id": job_id, "object": "job.deleted", "deleted": True}
        assert http.get(f"/v1/jobs/{job_id}").status_code == http.delete(f"/v1/jobs/{job_id}").status_code == 404


def test_a_finished_job_stays_as_it_is_when_cancelled(server: Any, http: httpx.Client) -> None:
    job_id = create(http)["id"]
    server.until(job_id)
    assert http.post(f"/v1/jobs/{job_id}/cancel").json()["status"] == "completed"


def test_events_resume_where_the_connection_was_cut(server: Any, http: httpx.Client) -> None:
    job_id = create(http, prompt="slow", previews=2, num_inference_steps=20)["id"]
    seen = read_events(http, job_id, limit=4)
    while seen[-1][1] != "completed":
        header = {"headers": {"Last-Event-ID": str(seen[-1][0])}}
        query = {"params": {"after": seen[-1][0]}}
        more = read_events(http, job_id, limit=3, **(header if len(seen) % 2 else query))
        assert more
        seen += more
    ids, kinds = [f[0] for f in seen], [f[1] for f in seen]
    assert ids == sorted(set(ids))
    # nothing is lost but progress that was overtaken before it was read
    published = server.dispatcher.feeds[job_id]._events
    assert [f[:2] for f in seen] == [(e.id, e.type) for e in published if e.type != "progress" or e.id in ids]
    assert (kinds.count("preview"), kinds.count("completed"), kinds.count("progress") > 3) == (2, 1, True)
    assert seen[-1][2] == http.get(f"/v1/jobs/{job_id}").json()


def test_events_for_those_who_come_late(server: Any, http: httpx.Client) -> None:
    job_id = create(http, previews=1)["id"]
    server.until(job_id)
    kinds = [f[1] for f in read_events(http, job_id)]
    assert kinds == ["queued", "started", "preview", "progress", "completed"]
    server.dispatcher.feeds.pop(job_id)  # as when it was started anew
    [last] = read_events(http, job_id, headers={"Last-Event-ID": "6"})
    assert last[:2] == (7, "completed")


def test_the_header_wins_over_the_query(server: Any, http: httpx.Client) -> None:
    job_id = create(http)["id"]
    server.until(job_id)
    both = read_events(http, job_id, params={"after": 0}, headers={"Last-Event-ID": "2"})
    assert both[0][0] > 2


def test_events_end_when_the_job_is_cancelled(server: Any, http: httpx.Client) -> None:
    job_id = create(http, prompt="hang")["id"]
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_events, server.http(), job_id)
        server.until(job_id, JobState.IN_PROGRESS)
        http.delete(f"/v1/jobs/{job_id}")
        assert reading.result(timeout=10)[-1][1] == "cancelled"


def test_silence_is_filled_with_comments(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.05)
    http = server.http()
    job_id = create(http, prompt="slow")["id"]
    text = http.get(f"/v1/jobs/{job_id}/events").text
    assert text.count(": alive\n\n") > 3
    assert text.endswith("\n\n")


def test_one_job_for_one_key_however_often_it_is_sent(server: Any) -> None:
    clients = [server.http(headers={"Idempotency-Key": "race"}) for _ in range(8)]
    before = server.service.jobs.list(limit=1)[0][0].id
    with ThreadPoolExecutor(8) as pool:
        ids = {job["id"] for job in pool.map(create, clients)}
    assert len(ids) == 1
    newer, _ = server.service.jobs.list(limit=2)
    assert [job.id for job in newer][1] == before
    server.until(*ids)
    assert create(clients[0])["status"] == "completed"
    other = clients[0].post("/v1/jobs", json={**IMAGE, "prompt": "a dog"})
    assert (other.status_code, other.json()["error"]["param"]) == (409, "Idempotency-Key")
    assert other.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("path", ["/v1/videos", "/v1/images/generations", "/v1/jobs"])
def test_every_route_that_makes_a_job_honours_the_key(server: Any, http: httpx.Client, path: str) -> None:
    headers = {"Idempotency-Key": f"key of {path}".replace(" ", "-")}
    before = len(server.service.jobs.list(limit=1000)[0])
    for _ in range(2):
        assert http.post(path, json={"prompt": "a cat"}, headers=headers).status_code < 300
    assert len(server.service.jobs.list(limit=1000)[0]) == before + 1
    assert http.post(path, json={"prompt": "a dog"}, headers=headers).status_code == 409


def test_remix_honours_the_key(server: Any, http: httpx.Client, picture: bytes) -> None:
    source = http.post("/v1/videos", data={"prompt": "a cat"}, files={"input_reference": picture}).json()["id"]
    headers = {"Idempotency-Key": "remix-once"}
    answers = [http.post(f"/v1/videos/{source}/remix", json={"prompt": "a dog"}, headers=headers) for _ in range(2)]
    assert len({a.json()["id"] for a in answers}) == 1


def test_a_full_queue_says_when_to_come_back(start: Callable[..., Any]) -> None:
    server = start(limits={"max_queued_jobs": 1})
    http = server.http()
    first = create(http, prompt="hang")
    for path in ("/v1/jobs", "/v1/videos", "/v1/images/generations"):
        refused = http.post(path, json={"prompt": "a cat"})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        assert refused.json()["error"]["type"] == "rate_limit_error"
    http.delete(f"/v1/jobs/{first['id']}")
    time.sleep(0.1)
    create(http)
