"""No tenant sees or changes what is another's: every route, by every tenant, on every kind of resource."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route
from tests.serve.api.conftest import Server, running

from raydiance.serve.api import create_app
from raydiance.serve.storage.job import Job, JobState

TENANTS = ("acme", "globex", "default")
UNKNOWN = "video_00000000000000000000000000000000"
KEY = "the-same-key-of-all"
PROMPT = {"prompt": "a cat", "seed": 1}

# route -> body; `{id}` is another tenant's job
BY_ID: dict[str, dict[str, Any] | None] = {
    "GET /v1/jobs/{id}": None,
    "DELETE /v1/jobs/{id}": None,
    "POST /v1/jobs/{id}/cancel": None,
    "GET /v1/jobs/{id}/events": None,
    "GET /v1/jobs/{id}/content": None,
    "HEAD /v1/jobs/{id}/content": None,
    "GET /v1/videos/{id}": None,
    "DELETE /v1/videos/{id}": None,
    "GET /v1/videos/{id}/content": None,
    "HEAD /v1/videos/{id}/content": None,
    "POST /v1/videos/{id}/remix": {"prompt": "at night"},
    "POST /v1/videos/edits": {"prompt": "at night", "video": {"id": "{id}"}},
    "POST /v1/videos/extensions": {"prompt": "at night", "video": {"id": "{id}"}},
    "GET /v1/jobs?after={id}": None,
    "GET /v1/videos?after={id}": None,
}
LISTS = ("GET /v1/jobs", "GET /v1/videos")
MAKES: dict[str, dict[str, Any]] = {
    "POST /v1/jobs": PROMPT,
    "POST /v1/videos": PROMPT,
    "POST /v1/images/generations": PROMPT,
    "POST /v1/images/edits": PROMPT | {"image": "data:image/png;base64,{picture}"},
}
SUMS = ("GET /v1/usage",)
# these tell nothing of tenants
COMMON = (
    *("GET /healthz", "GET /readyz", "GET /v1/models", "GET /v1/models/{model:path}"),
    *(
        f"{method} {path}"
        for method in ("GET", "HEAD")
        for path in ("/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc")
    ),
)


@dataclass
class House:
    """A server with three tenants, each with one job of every kind."""

    server: Server
    clients: dict[str, httpx.Client]
    jobs: dict[str, dict[str, str]] = field(default_factory=dict)  # tenant -> kind -> id

    def make(self, tenant: str, kind: str) -> str:
        bodies: dict[str, dict[str, Any]] = {
            "video": {},
            "image": {"num_frames": 1},
            "failed": {"prompt": "fail"},
            "running": {"prompt": "hang"},
        }
        answer = self.clients[tenant].post("/v1/jobs", json=PROMPT | bodies[kind])
        assert answer.status_code == 201, answer.text
        job_id = str(answer.json()["id"])
        self.server.until(job_id, *([JobState.IN_PROGRESS] if kind == "running" else []))
        return job_id

    def ask(self, tenant: str, route: str, job_id: str, **options: Any) -> httpx.Response:
        method, _, path = route.partition(" ")
        body = json.loads(json.dumps(BY_ID[route]).replace("{id}", job_id))
        options |= {} if body is None else {"json": body}
        return self.clients[tenant].request(method, path.replace("{id}", job_id), **options)

    def snapshot(self, tenant: str) -> list[tuple[Any, ...]]:
        """All that is kept of a tenant's jobs, but for the progress of what runs."""
        jobs, more = self.server.service.jobs.list(tenant=tenant, limit=1000, order="asc")
        assert not more
        return [(j.id, j.state, j.attempt, j.cost, j.artifacts, j.request, self.files(j)) for j in jobs]

    def files(self, job: Job) -> list[str]:
        folder = Path(self.server.service.config.storage.artifacts, "jobs", job.id)
        return sorted(path.name for path in folder.glob("*"))


KINDS = ("video", "image", "failed", "running")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with running(tmp_path_factory.mktemp("tenants"), auth={"mode": "keys"}) as server:
        secrets = {}
        for tenant in TENANTS:
            server.service.jobs.set_tenant(tenant)
            secrets[tenant] = server.service.jobs.create_key(tenant)[1]
        clients = {t: server.http(headers={"Authorization": f"Bearer {secret}"}) for t, secret in secrets.items()}
        house = House(server, clients)
        for tenant in TENANTS:
            house.jobs[tenant] = {kind: house.make(tenant, kind) for kind in KINDS}
            house.clients[tenant].get(f"/v1/jobs/{house.jobs[tenant]['video']}/content?variant=thumbnail")
        yield house
        for tenant in TENANTS:
            house.clients[tenant].post(f"/v1/jobs/{house.jobs[tenant]['running']}/cancel")


def test_every_route_has_a_case(house: House) -> None:
    routes = list(_leaves(create_app(house.server.service, house.server.service.config).routes))
    assert all(isinstance(route, Route) for route in routes), "another kind of route needs a case of its own"
    found = {f"{m} {route.path}" for route in routes for m in route.methods}
    by_id = {route for route in BY_ID if "?" not in route}
    assert found == by_id | set(LISTS) | set(MAKES) | set(SUMS) | set(COMMON)
    assert {route for route in found if "{id}" in route} <= set(BY_ID)


def _leaves(routes: Iterable[Any]) -> Iterator[Any]:
    """Of included routers too, which FastAPI keeps whole."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        yield from [route] if inner is None else _leaves(inner.routes)


@pytest.mark.parametrize("caller", TENANTS)
@pytest.mark.parametrize("route", BY_ID)
def test_another_tenants_job_is_as_one_that_does_not_exist(house: House, route: str, caller: str) -> None:
    others = [tenant for tenant in TENANTS if tenant != caller]
    before = {tenant: house.snapshot(tenant) for tenant in TENANTS}
    unknown = house.ask(caller, route, UNKNOWN)
    assert unknown.status_code == 404, unknown.text
    for owner in others:
        for kind, job_id in house.jobs[owner].items():
            answer = house.ask(caller, route, job_id)
            assert answer.status_code == 404, (owner, kind, answer.text)
            assert answer.text == unknown.text.replace(UNKNOWN, job_id), (owner, kind)
            assert _headers(answer, job_id) == _headers(unknown, UNKNOWN), (owner, kind)
    assert {tenant: house.snapshot(tenant) for tenant in TENANTS} == before


@pytest.mark.parametrize("route", BY_ID)
def test_the_same_request_reaches_the_owners_own(house: House, route: str) -> None:
    """Without this the cases above could be refused for another reason."""
    job_id = house.make("acme", "video")
    assert house.ask("acme", route, job_id).status_code != 404


@pytest.mark.parametrize("caller", TENANTS)
@pytest.mark.parametrize("route", LISTS)
def test_lists_hold_the_callers_own(house: House, route: str, caller: str) -> None:
    method, _, path = route.partition(" ")
    page = house.clients[caller].request(method, path, params={"limit": 100}).json()
    seen = {job["id"] for job in page["data"]}
    own = {job.id for job in house.server.service.jobs.list(tenant=caller, limit=1000)[0]}
    assert seen <= own
    assert house.jobs[caller]["video"] in seen
    assert not page["has_more"]
    first = house.clients[caller].request(method, path, params={"limit": 1, "order": "asc"}).json()["data"]
    assert first[0]["id"] in own


@pytest.mark.parametrize("route", MAKES)
def test_an_idempotency_key_is_its_tenants(house: House, route: str, picture: bytes) -> None:
    path = route.partition(" ")[2]
    key = f"{KEY}-{path}"
    text = json.dumps(MAKES[route]).replace("{picture}", base64.b64encode(picture).decode())
    made: dict[str, str] = {}
    for i, tenant in enumerate(TENANTS):
        body = json.loads(text) | {"seed": i}
        answer = house.clients[tenant].post(path, json=body, headers={"Idempotency-Key": key})
        assert answer.status_code in (200, 201), (tenant, answer.text)
        [job] = [j for j in house.server.service.jobs.list(tenant=tenant, limit=1000)[0] if j.request.seed == i][:1]
        made[tenant] = job.id
        again = house.clients[tenant].post(path, json=body, headers={"Idempotency-Key": key})
        assert again.json().get("id", job.id) == job.id
        refused = house.clients[tenant].post(path, json=body | {"seed": 99}, headers={"Idempotency-Key": key})
        assert refused.status_code == 409
    assert len(set(made.values())) == len(TENANTS)


@pytest.mark.parametrize("route", MAKES)
def test_another_tenants_file_cannot_be_named(house: House, route: str) -> None:
    key = f"jobs/{house.jobs['globex']['image']}/0.png"
    path = route.partition(" ")[2]
    sources = [{"artifact": key}, {"id": house.jobs["globex"]["image"]}, {"file_id": key}]
    for source in sources:
        for body in (
            PROMPT | {"image": source},
            PROMPT | {"inputs": [{"type": "image", "source": source}]},
            PROMPT | {"inputs": [{"type": "video", "source": source}]},
            PROMPT | {"input_reference": key},
        ):
            answer = house.clients["acme"].post(path, json=body)
            assert answer.status_code == 400, answer.text


@pytest.mark.parametrize("caller", TENANTS)
def test_usage_is_the_callers(house: House, caller: str) -> None:
    report = house.clients[caller].get("/v1/usage", params={"group_by": "tenant,model,day"}).json()
    assert {line["tenant"] for line in report["data"]} == {caller}
    [used] = house.server.service.jobs.usage(start="2000-01-01", end="9999-12-31", tenant=caller, group_by=())
    assert report["total"]["requests"] == used.requests


def test_the_operator_sees_all(house: House) -> None:
    """A server on loopback without keys, over the same stores; and the methods of the Python handle."""
    folder = Path(house.server.service.config.storage.artifacts).parent
    with running(folder) as server:
        http = server.http()
        for tenant in TENANTS:
            for job_id in house.jobs[tenant].values():
                assert http.get(f"/v1/jobs/{job_id}").json()["tenant"] == tenant
        report = http.get("/v1/usage", params={"group_by": "tenant"}).json()
        assert {line["tenant"] for line in report["data"]} == set(TENANTS)


def test_a_key_and_no_other_lets_in(house: House) -> None:
    nobody = house.server.http()
    for route in (*BY_ID, *LISTS, *MAKES, *SUMS):
        method, _, path = route.partition(" ")
        answer = nobody.request(method, path.replace("{id}", house.jobs["acme"]["video"]))
        assert answer.status_code == 401, route


def _headers(answer: httpx.Response, job_id: str) -> dict[str, str]:
    """Without what is of this one answer. Ids differ in length by their kind's name."""
    own = ("date", "x-request-id", "content-length")
    return {name: value.replace(job_id, "ID") for name, value in answer.headers.items() if name not in own}


def test_the_unknown_id_is_of_a_form_that_exists(house: House) -> None:
    assert len(UNKNOWN) == len(house.jobs["acme"]["video"])
