from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from raydiance.serve.config import load_config
from raydiance.serve.errors import ConfigError, NotFound
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.check import check_storage
from raydiance.serve.storage.job import Artifact, Job, artifact_prefix
from raydiance.serve.storage.jobs import JobStore
from raydiance.serve.storage.sweep import ORPHAN_AGE_S, remove_orphans, sweep


def test_sweep_forgets_what_has_expired_and_nothing_else(
    store: JobStore, make_job: Callable[..., Job], tmp_path: Path
) -> None:
    artifacts = ArtifactStore(str(tmp_path / "artifacts"))
    old, young = store.create(make_job()), store.create(make_job())

    async def main() -> None:
        for job, expires_at in ((old, 100.0), (young, 200.0)):
            keys = [f"{artifact_prefix(job.id)}/{name}" for name in ("input-0.png", "0.png")]
            for key in [*keys, f"elsewhere/{job.id}"]:
                await artifacts.put(key, b"x")
            made = [
                Artifact(key=key, index=0, content_type="image/png", size_bytes=1, width=1, height=1)
                for key in (keys[1], f"elsewhere/{job.id}")
            ]
            store.start(job.id)
            store.complete(job.id, artifacts=made, timings={}, expires_at=expires_at)
        assert await sweep(store, artifacts, 99.0) == 0
        assert await sweep(store, artifacts, 150.0) == 1
        assert await sweep(store, artifacts, 150.0) == 0

    asyncio.run(main())
    with pytest.raises(NotFound):
        store.get(old.id)
    assert store.get(young.id).find() is not None
    left = sorted(str(p.relative_to(tmp_path / "artifacts")) for p in (tmp_path / "artifacts").rglob("*.png"))
    assert left == [f"jobs/{young.id}/0.png", f"jobs/{young.id}/input-0.png"]
    assert not (tmp_path / "artifacts" / "elsewhere" / old.id).exists()


def test_more_than_one_page_is_swept(store: JobStore, make_job: Callable[..., Job], tmp_path: Path) -> None:
    for _ in range(101):
        store.cancel(store.create(make_job()).id)
    assert asyncio.run(sweep(store, ArtifactStore(str(tmp_path / "artifacts")), 9e9)) == 101
    assert store.list() == ([], False)


def test_inputs_of_no_job_are_removed_when_they_are_old(
    store: JobStore, make_job: Callable[..., Job], tmp_path: Path
) -> None:
    folder = tmp_path / "artifacts"
    artifacts = ArtifactStore(str(folder))
    at = time.time()

    def keep(key: str, age_s: float) -> str:
        asyncio.run(artifacts.put(key, b"x"))
        os.utime(folder / key, (at - age_s, at - age_s))
        return key

    job = make_job()
    kept = keep(f"{artifact_prefix(job.id)}/input-0.mp4", 9e6)
    source = {"type": "video", "source": {"artifact": kept}}
    store.create(make_job(inputs=[source]).model_copy(update={"id": job.id}))
    unfinished = store.create(make_job())
    left = {
        kept,
        keep("jobs/image_young/input-0.png", ORPHAN_AGE_S - 60),
        keep("jobs/image_gone/0.png", 9e6),  # nothing that was sent
        keep(f"{artifact_prefix(unfinished.id)}/0.png", 9e6),
        keep("elsewhere/image_gone/input-0.png", 9e6),
        keep("jobs/image_gone/deeper/input-0.png", 9e6),
    }
    keep("jobs/image_gone/input-0.png", ORPHAN_AGE_S + 60)
    keep("jobs/image_gone/input-1.webm", ORPHAN_AGE_S + 60)
    keep(f"{artifact_prefix(job.id)}/input-1.png", 9e6)  # of an attempt that its job does not name
    assert asyncio.run(remove_orphans(store, artifacts, at)) == 3
    assert {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} == left
    assert asyncio.run(remove_orphans(store, artifacts, at)) == 0


def test_an_input_is_as_old_as_it_was_written(store: JobStore, tmp_path: Path) -> None:
    artifacts = ArtifactStore(str(tmp_path / "artifacts"))
    assert asyncio.run(remove_orphans(store, artifacts, time.time())) == 0  # an empty store
    asyncio.run(artifacts.put("jobs/image_gone/input-0.png", b"x"))
    assert asyncio.run(remove_orphans(store, artifacts, time.time() + ORPHAN_AGE_S - 60)) == 0
    assert asyncio.run(remove_orphans(store, artifacts, time.time() + ORPHAN_AGE_S + 60)) == 1


def test_local_stores_serve_one_node() -> None:
    check_storage(load_config(), 1)
    with pytest.raises(ConfigError, match=r"storage\.database=sqlite:.*3"):
        check_storage(load_config(), 3)
    postgres = {"storage.database": "postgresql://u@h/d"}
    with pytest.raises(ConfigError, match=r"storage\.artifacts=.*3"):
        check_storage(load_config(postgres), 3)
    check_storage(load_config({**postgres, "storage.artifacts": "s3://bucket/x"}), 3)
