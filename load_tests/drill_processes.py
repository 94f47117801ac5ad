"""The processes of a session, as /proc has them: who is whose child, and what each is."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

GONE = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    session: int
    title: str

    def is_a(self, title: str) -> bool:
        return self.title.startswith(title)


def running() -> Iterator[Process]:
    """All of this machine that have not ended."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(*GONE):
            state, parent, _, session = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:4]
            title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if state != "Z":
                yield Process(int(entry.name), int(parent), int(session), title)


def of_session(session: int) -> list[Process]:
    return [p for p in running() if p.session == session]


def tree(root: int, processes: Iterable[Process]) -> list[Process]:
    """A process and all below it."""
    processes, found, parents = list(processes), [], {root}
    found = [p for p in processes if p.pid == root]
    while below := [p for p in processes if p.parent in parents and p.pid != root]:
        found += below
        parents = {p.pid for p in below}
    return found


def send(pids: Iterable[int], what: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, what)


def end_session(session: int) -> None:
    """SIGKILL for each of its processes; returns when all are gone."""
    while pids := [p.pid for p in of_session(session)]:
        send(pids, signal.SIGKILL)
        time.sleep(0.05)


def open_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except GONE:
        return 0


def memory_bytes(pid: int) -> int:
    """Resident, what it shares with nobody else."""
    with suppress(*GONE):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))
    return 0
