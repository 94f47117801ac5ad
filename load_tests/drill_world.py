"""A cluster to be disturbed, as whoever disturbs it sees it: its processes, its commands, its stores."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drill_processes import Process, end_session, of_session, tree
from drill_stores import S3, Disk, PostgreSQL, free_port

READY_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 20.0
REPLICA = "ray::ServeReplica:raydiance:"
TITLES = {
    "rank": "ray::RankActor",
    "denoiser": f"{REPLICA}Denoiser",
    "encoder": f"{REPLICA}TextEncoder",
    "decoder": f"{REPLICA}VAEDecoder",
    "dispatcher": f"{REPLICA}Dispatcher",
    "gateway": f"{REPLICA}Gateway",
    "controller": "ray::ServeController",
    "proxy": "ray::ProxyActor",
}


@dataclass(frozen=True)
class Shape:
    """Args:
    ranks: of a denoiser; above 1 they are on pretended GPUs.
    nodes: beside the head; 0: everything is on the head, with SQLite and a folder on a small disk of its own.
    """

    ranks: int = 1
    nodes: int = 2
    denoisers: int = 2
    options: Mapping[str, Any] = field(default_factory=dict)


def options_of(shape: Shape) -> dict[str, Any]:
    """Of Raydiance, but for the stores."""
    parallel = {"parallel.gpus": shape.ranks, "parallel.device": "cpu", "denoiser.num_gpus": 1}
    return {
        "model": "tiny",
        "http.num_replicas": 2,
        "denoiser.num_replicas": shape.denoisers,
        "denoiser.num_threads": 1,
        "denoiser.num_cpus": 2,  # one a node
        "denoiser.max_batch_size": 1,  # in a batch sums are rounded otherwise, by a level here and there
        "denoiser.checkpoint_interval_s": 1.0,
        "denoiser.store_interval_s": 3.0,
        "denoiser.progress_interval_s": 0.05,
        "scheduling.admission": False,
        **(parallel | {"parallel.step_deadline_s": 10, "parallel.calibration_s": 2} if shape.ranks > 1 else {}),
        **shape.options,
    }


class World:
    """Attributes:
    url: of HTTP; the same after a restart.
    options: that Raydiance has now.
    environment: of the cluster's processes.
    """

    def __init__(self, folder: Path, shape: Shape) -> None:
        self.shape = shape
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        folder.mkdir(parents=True, exist_ok=True)
        self.database = PostgreSQL(folder / "postgres") if shape.nodes else None
        self.artifacts: S3 | Disk = S3(folder / "s3") if shape.nodes else Disk(folder / "disk")
        database = f"sqlite:///{folder}/jobs.db" if self.database is None else self.database.url
        stores = {"storage.database": database, "storage.artifacts": self.artifacts.url, "http.port": self.port}
        self.options = options_of(shape) | stores
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # nodes listen beyond loopback
        self.environment = {**os.environ, **token, **self.artifacts.environment}
        self._child: subprocess.Popen[str] | None = None

    def start(self) -> World:
        """Returns when a warm-up generation is through."""
        shape = self.shape
        cpus = 2 * shape.denoisers if not shape.nodes else 0
        wanted = {
            "nodes": shape.nodes,
            "head_cpus": cpus + 2 if cpus else 0,
            "cpus": 3 + shape.ranks,
            "gpus": max(shape.ranks, 1),
            "port": self.port,
            "options": self.options,
        }
        with (self.folder / "cluster.log").open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, str(Path(__file__).parent / "drill_cluster.py"), json.dumps(wanted)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env=self.environment,
            )
        self._answer()
        self.wait_well()
        return self

    def ask(self, name: str, /, **arguments: Any) -> Any:
        child = self._running()
        assert child.stdin is not None
        child.stdin.write(json.dumps({"do": name, **arguments}) + "\n")
        child.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        child = self._running()
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            raise RuntimeError(f"the cluster ended with {child.wait()}; see {self.folder}/cluster.log")
        return json.loads(line)

    def _running(self) -> subprocess.Popen[str]:
        if self._child is None:
            raise RuntimeError("the cluster is stopped")
        return self._child

    def redeploy(self, **options: Any) -> None:
        """With other options, whose names have __ for a dot; does not wait."""
        self.options |= {name.replace("__", "."): value for name, value in options.items()}
        self.ask("deploy", options=self.options, replicas={})

    def scale(self, replicas: Mapping[str, int]) -> None:
        """Deployments to other numbers of replicas, without another version of any; does not wait."""
        self.ask("deploy", options=self.options, replicas=dict(replicas))

    def kill(self) -> None:
        """Every process of the cluster, at once. The stores stay."""
        if self._child is not None:
            end_session(self._child.pid)
            self._child.wait()
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe is not None:
                    pipe.close()
            self._child = None

    def close(self) -> None:
        self.kill()
        for store in (self.database, self.artifacts):
            if store is not None:
                store.stop()

    def processes(self) -> list[Process]:
        return of_session(self._running().pid)

    def raylets(self) -> dict[str, int]:
        found: dict[str, int] = self.ask("where")["raylets"]
        return found

    def session(self) -> Path:
        """Ray's folder, with its logs."""
        return Path(self.ask("where")["session"])

    def of_node(self, name: str) -> list[Process]:
        return tree(self.raylets()[name], self.processes())

    def find(self, kind: str) -> list[Process]:
        """By their pid. Args: kind: of TITLES."""
        return sorted((p for p in self.processes() if p.is_a(TITLES[kind])), key=lambda p: p.pid)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as response:  # noqa: S310 - http only
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def is_well(self) -> bool:
        """Ready, with all replicas that are wanted and none that ends."""
        status = self.ask("status")
        whole = all(d["status"].endswith("HEALTHY") and set(d["replicas"]) == {"RUNNING"} for d in status.values())
        unwell = any(d["status"].endswith("UNHEALTHY") for d in status.values())
        return bool(status) and whole and not unwell and self.is_ready()

    def wait_well(self, timeout_s: float = READY_TIMEOUT_S) -> float:
        """Seconds that it took. Raises RuntimeError."""
        began = time.monotonic()
        while not self.is_well():
            if time.monotonic() - began > timeout_s:
                raise RuntimeError(f"not well after {timeout_s:g} s: {self.ask('status')}; see {self.folder}")
            time.sleep(0.3)
        return time.monotonic() - began
