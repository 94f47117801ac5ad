"""A server of this machine with simulated accelerators, whose steps cost what is said: for benchmarks of what is around
them. Its processes' CPU time, by what they are."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raydiance.serve.config import load_config
from raydiance.serve.engine.cost_model import CostModel
from raydiance.serve.engine.cost_profile import Profile
from raydiance.serve.local import LocalServer, start_local

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@contextmanager
def simulated_server(costs: CostModel, options: Mapping[str, Any]) -> Iterator[LocalServer]:
    """The embedded model, simulated at speed 1.

    Args:
        costs: of its parts; what is missing takes no time.
    """
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder, "costs.json")
        Profile(costs, {}, {}, ()).save(profile)
        config = load_config(
            {
                "models": [{"path": "tiny", "cost_profile": str(profile)}],
                "simulate.gpu": "h100",
                "simulate.startup_s": 0.0,
                "http.port": 0,
                "storage.database": f"sqlite:///{folder}/jobs.db",
                "storage.artifacts": f"{folder}/artifacts",
                **options,
            }
        )
        with start_local(config) as server:
            yield server


def cpu_seconds() -> dict[str, float]:
    """Of this process and all below it, by their names: `Dispatcher`, `Denoiser`, `raylet`, …"""
    parents, names, spent = {}, {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            after = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        pid = int(entry.name)
        parents[pid], names[pid] = int(after[1]), _name(command)
        spent[pid] = (int(after[11]) + int(after[12])) * TICK_S
    own = os.getpid()
    found: dict[str, float] = {}
    for pid, seconds in spent.items():
        if pid == own or _is_below(pid, own, parents):
            name = "load generator" if pid == own else names[pid]
            found[name] = found.get(name, 0.0) + seconds
    return found


def _is_below(pid: int, above: int, parents: Mapping[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == above:
            return True
    return False


def _name(command: str) -> str:
    if (replica := re.search(r"ServeReplica:\w+:([A-Za-z]+)", command)) is not None:
        return replica.group(1)
    for name in ("ServeController", "ProxyActor", "gcs_server", "raylet"):
        if name in command:
            return name
    return "others"
