from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from raydiance.serve.config import load_config
from raydiance.serve.errors import ConfigError, NotFound
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.check import check_storage
from raydiance.serve.storage.job import Artifact, Job, artifact_prefix
from raydiance.serve.storage.jobs import JobStore
from raydiance.serve.storage.sweep import sweep


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


def test_local_stores_serve_one_node() -> None:
    check_storage(load_config(), 1)
    with pytest.raises(ConfigError, match=r"storage\.database=sqlite:.*3"):
        check_storage(load_config(), 3)
    postgres = {"storage.database": "postgresql://u@h/d"}
    with pytest.raises(ConfigError, match=r"storage\.artifacts=.*3"):
        check_storage(load_config(postgres), 3)
    check_storage(load_config({**postgres, "storage.artifacts": "s3://bucket/x"}), 3)
