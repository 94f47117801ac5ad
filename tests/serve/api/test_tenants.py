"""No tenant sees or changes what is another's: every route, by every tenant, on every kind of resource."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route
from tests.serve.api.conftest import Server, running
from tests.serve.api.routes import BY_ID, COMMON, GROUP_BY_ID, GROUPS, LISTS, MAKES, PROMPT, QUOTES, SUMS

from raydiance.serve.api import create_app
from raydiance.serve.storage.job import Job, JobState

TENANTS = ("acme", "globex", "default")
UNKNOWN = "video_00000000000000000000000000000000"
KEY = "the-same-key-of-all"
SHARED = "round-7"  # an id that every tenant has given to a group of its own


@dataclass
class House:
    """A server with three tenants, each with one job of every kind."""

    server: Server
    clients: dict[str, httpx.Client]
    jobs: dict[str, dict[str, str]] = field(default_factory=dict)  # tenant -> kind -> id
    groups: dict[str, str] = field(default_factory=dict)  # tenant -> id

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

    def make_group(self, tenant: str, group_id: str) -> str:
        """With a job that runs."""
        hanging = {"prompt": "hang", "seed": 1}
        answer = self.clients[tenant].post("/v1/groups", json={"id": group_id, "requests": [hanging]})
        assert answer.status_code == 201, answer.text
        self.server.until(answer.json()["requests"][0]["job"]["id"], JobState.IN_PROGRESS)
        return group_id

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
            house.groups[tenant] = house.make_group(tenant, f"round-of-{tenant}")
            house.make_group(tenant, SHARED)
            house.clients[tenant].get(f"/v1/jobs/{house.jobs[tenant]['video']}/content?variant=thumbnail")
        yield house
        for tenant in TENANTS:
            house.clients[tenant].post(f"/v1/jobs/{house.jobs[tenant]['running']}/cancel")
            for group_id in (house.groups[tenant], SHARED):
                house.clients[tenant].delete(f"/v1/groups/{group_id}")


def test_every_route_has_a_case(house: House) -> None:
    routes = list(_leaves(create_app(house.server.service, house.server.service.config).routes))
    assert all(isinstance(route, Route) for route in routes), "another kind of route needs a case of its own"
    found = {f"{m} {route.path}" for route in routes for m in route.methods}
    by_id = {route for route in BY_ID if "?" not in route}
    assert found == by_id | {*GROUP_BY_ID, *LISTS, *MAKES, *SUMS, GROUPS, QUOTES, *COMMON}
    assert {route for route in found if "{id}" in route} <= {*BY_ID, *GROUP_BY_ID}


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
@pytest.mark.parametrize("route", GROUP_BY_ID)
def test_another_tenants_group_is_as_one_that_does_not_exist(house: House, route: str, caller: str) -> None:
    method, _, path = route.partition(" ")
    before = {tenant: house.snapshot(tenant) for tenant in TENANTS}
    unknown = house.clients[caller].request(method, path.replace("{id}", "no-such-round"))
    assert unknown.status_code == 404, unknown.text
    for owner in (tenant for tenant in TENANTS if tenant != caller):
        group_id = house.groups[owner]
        answer = house.clients[caller].request(method, path.replace("{id}", group_id))
        assert answer.status_code == 404, answer.text
        assert answer.text == unknown.text.replace("no-such-round", group_id)
        assert _headers(answer, group_id) == _headers(unknown, "no-such-round")
    assert {tenant: house.snapshot(tenant) for tenant in TENANTS} == before


@pytest.mark.parametrize("caller", TENANTS)
def test_groups_of_one_id_are_apart(house: House, caller: str) -> None:
    http = house.clients[caller]
    group = http.get(f"/v1/groups/{SHARED}").json()
    assert group["tenant"] == caller
    seen = {job["id"] for job in http.get("/v1/jobs", params={"group": SHARED, "limit": 100}).json()["data"]}
    assert seen == set(group["jobs"]["data"])
    assert seen <= {job.id for job in house.server.service.jobs.list(tenant=caller, limit=1000)[0]}
    assert http.get(f"/v1/groups/{SHARED}", params={"after": house.jobs[_other(caller)]["video"]}).status_code == 404
    assert http.post("/v1/groups", json={"id": SHARED, "requests": [PROMPT]}).status_code == 409


def test_a_group_is_joined_and_cancelled_by_its_tenant_alone(house: House) -> None:
    """Another's request that carries its id joins a group of that other's own."""
    group_id = house.make_group("acme", "contested")
    joined = house.clients["globex"].post("/v1/jobs", json=PROMPT | {"group": group_id}).json()
    assert house.clients["acme"].get(f"/v1/groups/{group_id}").json()["counts"]["in_progress"] == 1
    assert house.clients["globex"].get(f"/v1/groups/{group_id}").json()["jobs"]["data"] == [joined["id"]]
    assert house.clients["globex"].delete(f"/v1/groups/{group_id}").status_code == 200
    assert house.clients["acme"].get(f"/v1/groups/{group_id}").json()["counts"]["in_progress"] == 1
    assert house.clients["acme"].delete(f"/v1/groups/{group_id}").json()["counts"]["cancelled"] == 1


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
    _check_files(house, route, lambda body: body)


def test_another_tenants_file_cannot_be_named_in_a_group(house: House) -> None:
    _check_files(house, GROUPS, lambda body: {"requests": [PROMPT, body], "atomic": True})


def _check_files(house: House, route: str, wrap: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
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
            answer = house.clients["acme"].post(path, json=wrap(body))
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
    for route in (*BY_ID, *GROUP_BY_ID, *LISTS, *MAKES, *SUMS, GROUPS, QUOTES):
        method, _, path = route.partition(" ")
        answer = nobody.request(method, path.replace("{id}", house.jobs["acme"]["video"]))
        assert answer.status_code == 401, route


def _other(tenant: str) -> str:
    return next(other for other in TENANTS if other != tenant)


def _headers(answer: httpx.Response, job_id: str) -> dict[str, str]:
    """Without what is of this one answer. Ids differ in length by their kind's name."""
    own = ("date", "x-request-id", "content-length")
    return {name: value.replace(job_id, "ID") for name, value in answer.headers.items() if name not in own}


def test_the_unknown_id_is_of_a_form_that_exists(house: House) -> None:
    assert len(UNKNOWN) == len(house.jobs["acme"]["video"])
