"""A Ray cluster that this process has started, as the machine sees it: its processes and its folder."""

from __future__ import annotations

import importlib
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

DISPATCHER = "ServeReplica:raydiance:Dispatcher"
GONE_TIMEOUT_S = 2.0


def stop(*, keep_logs: bool = False) -> None:
    """Ends the cluster without draining: jobs are in SQL, and a step may take longer than people wait.

    When it returns, none of its processes runs, and its folder is removed. Other clusters are left alone.

    Args:
        keep_logs: leaves the folder, for its logs.
    """
    import ray
    from ray._private import worker

    psutil: Any = importlib.import_module("psutil")  # Ray's own copy, found once Ray is imported
    node: Any = worker._global_node
    if node is None:
        return
    folder = Path(node.get_session_dir_path())
    processes: dict[int, Any] = {}
    for info in (info for infos in node.all_processes.values() for info in infos):
        with suppress(psutil.NoSuchProcess):
            daemon = psutil.Process(info.process.pid)
            processes |= {p.pid: p for p in (daemon, *daemon.children(recursive=True))}
    for process in processes.values():  # before the stages: it would take their end for a failure of its jobs
        with suppress(psutil.NoSuchProcess):
            if DISPATCHER in " ".join(process.cmdline()):
                process.kill()
    ray.shutdown()
    for process in processes.values():
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(list(processes.values()), GONE_TIMEOUT_S)
    if not keep_logs:
        _remove(folder)


def _remove(folder: Path) -> None:
    latest = folder.parent / "session_latest"
    with suppress(OSError):  # none, or another's
        if latest.readlink() == folder:
            latest.unlink()
    shutil.rmtree(folder, ignore_errors=True)  # what the system does not let go of is its own to remove from /tmp
