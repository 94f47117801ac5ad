"""A real server of the real command in a process group of its own, for tests to talk to, and to kill."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

START_TIMEOUT_S = 180
SETTINGS: dict[str, object] = {
    "network.allow_hosts": "127.0.0.1",
    "webhooks.secret": "whsec_dGVzdC1zZWNyZXQtb2YtcmF5ZGlhbmNl",
    "webhooks.first_retry_s": 0.1,
    "denoiser.progress_interval_s": 0.05,
    "denoiser.checkpoint_interval_s": 0.2,
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """`raydiance serve tiny` on its own Ray cluster.

    Args:
        folder: keeps its jobs and artifacts; a second server of the same folder takes up what the first left.
        command: another one that serves on `port`.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object] | None = None,
        port: int | None = None,
        command: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "server.log"
        folder.mkdir(parents=True, exist_ok=True)
        options = {
            "storage.database": f"sqlite:///{folder}/jobs.db",
            "storage.artifacts": f"{folder}/artifacts",
            **(settings or {}),
        }
        sets = [arg for key, value in options.items() for arg in ("--set", f"{key}={value}")]
        start = "from raydiance.serve.cli import main; main()"
        ours = [sys.executable, "-c", start, "serve", "tiny", "--port", str(self.port), *sets]
        self._output = self.log.open("ab")
        self.process = subprocess.Popen(
            [*command] or ours,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ.copy(),
        )

    def wait_ready(self) -> Server:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200:
                    return self
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"the server did not become ready:\n{self.log.read_text()[-4000:]}")

    def pids(self, name: str = "") -> list[int]:
        """Processes of this server's session (Ray's daemons and workers keep it) whose command line holds `name`."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                state, _, _, session = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:4]
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(session) == self.process.pid and state != "Z" and name in command:
                found.append(int(entry.name))
        return found

    def kill_all(self) -> None:
        """SIGKILL for every process of the cluster, at once; returns when all are gone."""
        while pids := self.pids():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.05)
        self.process.wait(10)
        self._output.close()

    def stop(self) -> int:
        """As a person would, with Ctrl-C; returns the exit code. What is left of the cluster afterwards is killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill_all()
        code = self.process.wait(10)
        self._output.close()
        return code
