from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raydiance.serve.request import GenerationRequest
from raydiance.serve.storage.job import Job, new_job_id, now
from raydiance.serve.storage.jobs import JobStore


def _make_job(*, kind: str = "image", model: str = "tiny", created_at: float | None = None, **request: Any) -> Job:
    return Job.model_validate(
        {
            "id": new_job_id(kind),
            "kind": kind,
            "model": model,
            "request": GenerationRequest(model=model, **request),
            "specs": [{"seed": 7, "height": 64}],
            "created_at": now() if created_at is None else created_at,
        }
    )


@pytest.fixture
def make_job() -> Callable[..., Job]:
    return _make_job


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/new/folder/jobs.db"


@pytest.fixture
def store(url: str) -> Iterator[JobStore]:
    store = JobStore(url)
    yield store
    store.close()


@pytest.fixture
def race() -> Callable[..., list[Any]]:
    """Runs a script in `n` processes that are let go together; each gets its number and `args`, and sets `result`."""

    def run(script: str, n: int, *args: str) -> list[Any]:
        code = f"import json, sys\nwho, *args = sys.argv[1:]\nprint('ready', flush=True)\ninput()\n{script}\n"
        code = f"from raydiance.serve.storage.jobs import *\n{code}print(json.dumps(result))\n"
        command = [sys.executable, "-W", "error", "-c", code]
        children = [
            subprocess.Popen([*command, str(i), *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for i in range(n)
        ]
        try:
            for child in children:
                assert child.stdout is not None
                assert child.stdout.readline() == "ready\n"
            for child in children:
                assert child.stdin is not None
                child.stdin.write("go\n")
                child.stdin.flush()
            return [json.loads(child.communicate(timeout=60)[0]) for child in children]
        finally:
            for child in children:
                child.kill()
                child.communicate()

    return run
