"""`/v1/groups`: requests that belong together, over real HTTP and a real database."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve.api.conftest import TIMINGS, Server

from raydiance.serve.api.groups import GroupCreated, GroupView
from raydiance.serve.storage.job import JobState

Start = Callable[..., Server]
Refused = Callable[..., None]
STEP_S = 2.0
IMAGE = {"prompt": "a cat", "num_frames": 1, "num_inference_steps": 5}
IMAGE_S = 5 * STEP_S
HANG = IMAGE | {"prompt": "hang"}
USED_S = TIMINGS["encode_s"] + TIMINGS["denoise_s"] + TIMINGS["decode_s"]


@pytest.fixture
def priced(start: Start) -> Server:
    server = start(auth={"gpu_second_price": 0.5})
    server.dispatcher.price(STEP_S)
    return server


def create(http: httpx.Client, *requests: dict[str, Any], **terms: Any) -> dict[str, Any]:
    answer = http.post("/v1/groups", json={"requests": list(requests), **terms})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def nothing_is_left(server: Server) -> bool:
    """No job, no file, no charge, and no room that is kept."""
    store = server.service.jobs
    files = list(Path(server.service.config.storage.artifacts).rglob("input-*"))
    return store.list() == ([], False) and not files and not server.dispatcher.desk._entries


def test_a_group_is_shown_as_documented(server: Server, http: httpx.Client) -> None:
    made = create(http, IMAGE | {"seed": 1}, IMAGE | {"seed": 2}, id="shown", deadline_s=600, max_gpu_seconds=100)
    assert set(made) == set(GroupCreated.model_fields)
    assert [one["error"] for one in made["requests"]] == [None, None]
    ids = [one["job"]["id"] for one in made["requests"]]
    assert [one["job"]["parameters"]["seed"] for one in made["requests"]] == [1, 2]
    assert {one["job"]["group"] for one in made["requests"]} == {"shown"}
    assert made["deadline"] == pytest.approx(time.time() + 600, abs=10)
    for job_id in ids:
        server.until(job_id)
    shown = http.get("/v1/groups/shown").json()
    assert set(shown) == set(GroupView.model_fields)
    assert shown["counts"] == {"queued": 0, "in_progress": 0, "completed": 2, "failed": 0, "cancelled": 0}
    assert shown["usage"]["gpu_seconds"] == {
        "text_encode": 2 * TIMINGS["encode_s"],
        "denoise": 2 * TIMINGS["denoise_s"],
        "decode": 2 * TIMINGS["decode_s"],
        "total": 2 * USED_S,
    }
    assert (shown["usage"]["cost"], shown["gpu_seconds_left"]) == (2 * USED_S, 100 - 2 * USED_S)
    assert http.delete(f"/v1/jobs/{ids[0]}").json()["deleted"]
    less = http.get("/v1/groups/shown").json()
    assert (less["counts"]["completed"], less["jobs"]["data"]) == (1, ids[1:])
    assert less["usage"] == shown["usage"], "deleting a job takes nothing out of what was used"


def test_an_id_is_made_and_pages_of_jobs(http: httpx.Client) -> None:
    made = create(http, *[IMAGE | {"seed": i} for i in range(5)])
    ids = [one["job"]["id"] for one in made["requests"]]
    assert made["jobs"]["data"] == ids
    path = f"/v1/groups/{made['id']}"
    first = http.get(path, params={"limit": 3, "order": "asc"}).json()["jobs"]
    assert first == {"data": ids[:3], "has_more": True, "first_id": ids[0], "last_id": ids[2]}
    rest = http.get(path, params={"limit": 3, "order": "asc", "after": ids[2]}).json()["jobs"]
    assert rest == {"data": ids[3:], "has_more": False, "first_id": ids[3], "last_id": ids[4]}
    listed = http.get("/v1/jobs", params={"group": made["id"], "limit": 2}).json()
    assert ([job["id"] for job in listed["data"]], listed["has_more"]) == (ids[:-3:-1], True)


def test_each_has_its_job_or_its_error(server: Server, http: httpx.Client) -> None:
    requests = [IMAGE, IMAGE | {"num_inference_steps": 0}, IMAGE | {"steps": 3}, IMAGE | {"model": "x"}, IMAGE]
    made = create(http, *requests, IMAGE | {"group": "another"})
    errors = [one["error"] for one in made["requests"]]
    assert [None if e is None else (e["param"], e["code"]) for e in errors] == [
        None,
        ("num_inference_steps", "invalid_value"),
        ("steps", "unknown_parameter"),
        ("model", "model_not_found"),
        None,
        ("group", "invalid_value"),
    ]
    assert len(made["jobs"]["data"]) == 2
    assert all(one["retry_after_s"] is None for one in made["requests"])


def test_all_or_none(start: Start, refused: Refused, picture: bytes) -> None:
    server = start()
    http = server.http()
    good = IMAGE | {"image": f"data:image/png;base64,{base64.b64encode(picture).decode()}"}
    for bad, status, field, words in (
        ({"num_inference_steps": 0}, 400, "num_inference_steps", ["requests.2:", "num_inference_steps=0"]),
        ({"steps": 3}, 400, "steps", ["unknown parameter 'steps'"]),
        ({"image": "data:image/png;base64,AAAA"}, 415, "inputs.0.source", ["requests.2:", "PNG"]),
        ({"group": "another"}, 400, "group", ["another"]),
        ({"webhook": "https://example.com/"}, 400, "webhook", ["webhooks.secret"]),
    ):
        body = {"id": "whole", "atomic": True, "requests": [good, good, IMAGE | bad]}
        refused(http.post("/v1/groups", json=body), status, f"requests.2.{field}", *words)
        assert nothing_is_left(server)
        assert http.get("/v1/groups/whole").status_code == 404
    made = create(http, good, good, IMAGE, id="whole", atomic=True)
    assert [one["error"] for one in made["requests"]] == [None] * 3
    for one in made["requests"]:
        assert server.until(one["job"]["id"]).state is JobState.COMPLETED


def test_all_are_admitted_together_or_none(priced: Server, refused: Refused) -> None:
    """Each takes 10 s of the one replica, which has one already: within 108 s nine of them are done."""
    http = priced.http()
    first = http.post("/v1/jobs", json=HANG | {"slo_s": 11}).json()
    priced.until(first["id"], JobState.IN_PROGRESS)
    answer = http.post("/v1/groups", json={"id": "w", "atomic": True, "deadline_s": 108, "requests": [HANG] * 11})
    refused(answer, 429, answer.json()["error"]["param"], "requests.", "deadline_s", "too late")
    assert int(answer.headers["retry-after"]) >= 2
    assert set(priced.dispatcher.desk._entries) == {first["id"]}
    assert priced.service.jobs.list(group="w") == ([], False)
    assert http.get("/v1/groups/w").status_code == 404
    each = create(http, *[HANG] * 11, id="w", deadline_s=108)
    admitted = [one["job"] is not None for one in each["requests"]]
    assert admitted == [True] * 9 + [False] * 2
    assert each["requests"][-1]["retry_after_s"] > 0
    assert each["requests"][-1]["error"]["code"] == "rate_limit_exceeded"
    cancelled = http.delete("/v1/groups/w").json()
    assert cancelled["counts"]["cancelled"] == 9
    made = create(http, *[IMAGE] * 8, id="again", deadline_s=108, atomic=True)
    assert made["counts"]["queued"] + made["counts"]["in_progress"] + made["counts"]["completed"] == 8
    http.delete(f"/v1/jobs/{first['id']}")


def test_a_tenants_limits_hold_for_all_of_it(start: Start, refused: Refused) -> None:
    server = start(auth={"mode": "keys"})
    server.service.jobs.set_tenant("acme", concurrency=3)
    http = server.http(headers={"Authorization": f"Bearer {server.service.jobs.create_key('acme')[1]}"})
    body = {"atomic": True, "requests": [HANG] * 4}
    refused(http.post("/v1/groups", json=body), 403, "requests", "4 samples", "concurrency=3")
    hanging = create(http, HANG, HANG, atomic=True)
    refused(http.post("/v1/groups", json={"atomic": True, "requests": [HANG] * 2}), 429, None, "concurrency=3")
    each = create(http, HANG, HANG)
    assert [one["job"] is not None for one in each["requests"]] == [True, False]
    assert len(server.service.jobs.unfinished()) == 3
    for group in (hanging, each):
        http.delete(f"/v1/groups/{group['id']}")


def test_a_deadline_for_all_from_the_groups_creation(priced: Server) -> None:
    http = priced.http()
    terms = {"id": "d", "deadline_s": 500, "service_tier": "interactive", "slo_s": 400}
    made = create(http, HANG, HANG | {"deadline_s": 200}, **terms)
    own = HANG | {"group": "d", "service_tier": "batch", "slo_s": 450}
    ids = [*(one["job"]["id"] for one in made["requests"]), http.post("/v1/jobs", json=own).json()["id"]]
    inherits, sooner, later = (priced.service.jobs.get(job_id) for job_id in ids)
    for job in (inherits, later):
        assert job.request.deadline_s is not None
        assert job.created_at + job.request.deadline_s == pytest.approx(made["deadline"], abs=0.01)
    assert sooner.request.deadline_s == 200
    given = [(job.request.service_tier, job.request.slo_s) for job in (inherits, sooner, later)]
    assert given == [("interactive", 400), ("interactive", 400), ("batch", 450)]
    http.delete("/v1/groups/d")


def test_a_deadline_that_has_passed(http: httpx.Client, refused: Refused) -> None:
    short = create(http, HANG, deadline_s=0.5, atomic=True)
    time.sleep(max(0.0, short["deadline"] - time.time()))
    for path, body in (("jobs", HANG), ("videos", {"prompt": "a cat"}), ("quotes", HANG)):
        answer = http.post(f"/v1/{path}", json=body | {"group": short["id"]})
        refused(answer, 409, "group", f"deadline of group '{short['id']}' passed")
        assert answer.json()["error"]["code"] == "group_deadline_passed"
    http.delete(f"/v1/groups/{short['id']}")


def test_a_budget_for_all(priced: Server, refused: Refused) -> None:
    """Expected while they are unfinished, used when they have ended."""
    http = priced.http()
    budget_s = 2.5 * IMAGE_S
    made = create(http, HANG, HANG, id="b", max_gpu_seconds=budget_s)
    assert (made["expected_gpu_seconds"], made["gpu_seconds_left"]) == (2 * IMAGE_S, 0.5 * IMAGE_S)
    answer = http.post("/v1/jobs", json=IMAGE | {"group": "b"})
    words = ("group 'b'", f"max_gpu_seconds={budget_s:g}", "used: 0", f"unfinished jobs: {2 * IMAGE_S:g}", "asked: 10")
    refused(answer, 429, "group", *words)
    assert answer.json()["error"]["code"] == "group_budget_exceeded"
    assert 1 <= int(answer.headers["retry-after"]) <= IMAGE_S
    quote = http.post("/v1/quotes", json=IMAGE | {"group": "b"}).json()
    assert (quote["would_be_admitted"], "max_gpu_seconds" in quote["refusal"]) == (False, True)
    assert http.post("/v1/jobs", json=IMAGE | {"group": "b", "num_inference_steps": 2}).status_code == 201
    http.delete("/v1/groups/b")
    ended = [http.post("/v1/jobs", json=IMAGE | {"group": "b"}).json()["id"] for _ in range(2)]
    for job_id in ended:
        priced.until(job_id)
    shown = http.get("/v1/groups/b").json()
    small_s = shown["usage"]["gpu_seconds"]["total"] - 2 * USED_S  # of the one with two steps, if it was done by then
    assert small_s in (0, pytest.approx(USED_S))
    assert shown["gpu_seconds_left"] == pytest.approx(budget_s - 2 * USED_S - small_s)
    refused(http.post("/v1/jobs", json=IMAGE | {"group": "b", "n": 3}), 429, "group", "no waiting changes that")


def test_a_budget_for_all_or_none(priced: Server, refused: Refused) -> None:
    http = priced.http()
    body = {"atomic": True, "max_gpu_seconds": 2.5 * IMAGE_S, "requests": [IMAGE] * 3}
    refused(http.post("/v1/groups", json=body), 429, "group", "max_gpu_seconds=25", "asked: 30")
    assert nothing_is_left(priced)
    each = create(http, *[HANG] * 3, max_gpu_seconds=2.5 * IMAGE_S)
    assert [one["error"] and one["error"]["code"] for one in each["requests"]] == [None, None, "group_budget_exceeded"]
    http.delete(f"/v1/groups/{each['id']}")


def test_requests_at_once_do_not_exceed_a_budget_together(priced: Server) -> None:
    http = priced.http()
    create(http, HANG, id="b", max_gpu_seconds=4 * IMAGE_S)
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda _: http.post("/v1/jobs", json=HANG | {"group": "b"}).status_code, range(12)))
    assert (statuses.count(201), statuses.count(429)) == (3, 9)
    assert http.delete("/v1/groups/b").json()["counts"]["cancelled"] == 4


def test_a_group_begins_with_any_request_that_carries_it(server: Server, http: httpx.Client) -> None:
    job = http.post("/v1/jobs", json=IMAGE | {"group": "implicit"}).json()
    video = http.post("/v1/videos", json={"prompt": "a cat", "group": "implicit"}).json()
    image = http.post("/v1/images/generations", json={"prompt": "a cat", "group": "implicit"})
    assert image.status_code == 200
    for job_id in (job["id"], video["id"]):
        server.until(job_id)
    group = http.get("/v1/groups/implicit").json()
    assert (group["counts"]["completed"], len(group["jobs"]["data"])) == (3, 3)
    assert (group["deadline_s"], group["max_gpu_seconds"], group["gpu_seconds_left"]) == (None, None, None)


def test_a_group_is_cancelled(server: Server, http: httpx.Client) -> None:
    other = http.post("/v1/jobs", json=HANG).json()["id"]
    made = create(http, *[HANG] * 5, IMAGE)
    done = made["requests"][-1]["job"]["id"]
    server.until(done)
    cancelled = http.delete(f"/v1/groups/{made['id']}").json()
    assert (cancelled["counts"]["cancelled"], cancelled["counts"]["completed"]) == (5, 1)
    assert server.service.jobs.get(other).state is not JobState.CANCELLED
    assert http.delete(f"/v1/groups/{made['id']}").json()["counts"] == cancelled["counts"], "twice is once"
    http.delete(f"/v1/jobs/{other}")


def test_a_remix_is_on_terms_of_its_own(server: Server, http: httpx.Client) -> None:
    made = create(http, {"prompt": "a cat"}, id="gone", deadline_s=2)
    video = made["requests"][0]["job"]["id"]
    assert server.until(video).state is JobState.COMPLETED
    time.sleep(max(0.0, made["deadline"] - time.time()))
    remix = http.post(f"/v1/videos/{video}/remix", json={"prompt": "at night"})
    assert remix.status_code == 200, remix.text
    request = server.service.jobs.get(remix.json()["id"]).request
    assert (request.group, request.deadline_s, request.service_tier) == (None, None, None)


@pytest.mark.parametrize(
    ("terms", "param", "words"),
    [
        ({"requests": []}, "requests", ["1"]),
        ({"requests": [IMAGE] * 65}, "requests", ["64", "65"]),
        ({"requests": "many"}, "requests", []),
        ({"requests": ["a cat"]}, "requests.0", ["mapping"]),
        ({"id": "a b"}, "id", []),
        ({"id": "x" * 65}, "id", []),
        ({"deadline_s": 0}, "deadline_s", ["0"]),
        ({"max_gpu_seconds": -1}, "max_gpu_seconds", ["0"]),
        ({"service_tier": "soon"}, "service_tier", ["interactive"]),
        ({"atomic": "perhaps"}, "atomic", ["perhaps"]),
        ({"budget": 1}, "budget", ["unknown parameter 'budget'"]),
    ],
)
def test_terms_that_cannot_be_honoured(
    http: httpx.Client, refused: Refused, terms: dict[str, Any], param: str, words: list[str]
) -> None:
    refused(http.post("/v1/groups", json={"requests": [IMAGE], **terms}), 400, param, *words)


def test_ids_are_taken_once_and_keys_are_not_taken(http: httpx.Client, refused: Refused) -> None:
    create(http, IMAGE, id="once")
    refused(http.post("/v1/groups", json={"id": "once", "requests": [IMAGE]}), 409, "id", "'once'")
    refused(http.post("/v1/groups", json={"id": "once", "requests": [IMAGE], "atomic": True}), 409, "id", "'once'")
    assert len(http.get("/v1/groups/once").json()["jobs"]["data"]) == 1
    answer = http.post("/v1/groups", json={"requests": [IMAGE]}, headers={"Idempotency-Key": "k"})
    refused(answer, 400, "Idempotency-Key", "give an id")
    refused(http.get("/v1/groups/once", params={"after": "video_0"}), 404, "after", "no job")
