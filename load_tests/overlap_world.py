"""The ranks of the overlap benchmark, as the driver sees them: started in their namespaces, asked all at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from overlap_net import LINK, Network

SHARED = "shared"
"""The process of most arms; see overlap_arms.Arm."""
PROGRAM = Path(__file__).with_name("overlap_rank.py")
END_S = 20.0
LOG_LINES = 20


class RankFailed(RuntimeError):
    """Which one, at what, and the end of each rank's log."""


class World:
    """A context manager. Each rank has one thread for its compute."""

    def __init__(self, network: Network, port: int) -> None:
        self._network, self._port = network, port
        self._ranks: list[subprocess.Popen[str]] = []
        self._logs = tempfile.TemporaryDirectory()

    def __enter__(self) -> World:
        environment = os.environ | {"GLOO_SOCKET_IFNAME": LINK, "OMP_NUM_THREADS": "1"}
        for rank in range(self._network.ranks):
            program = [sys.executable, str(PROGRAM), "--rank", str(rank), "--world", str(self._network.ranks)]
            program += ["--address", f"{self._network.address(0)}:{self._port}"]
            with self._log(rank).open("w") as log:
                self._ranks.append(
                    subprocess.Popen(
                        self._network.command(rank, program),
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        text=True,
                        env=environment,
                        start_new_session=True,  # Ctrl-C is the driver's, which ends them
                    )
                )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            for process in self._ranks:
                if error is not None:
                    process.kill()
                elif process.stdin is not None:
                    process.stdin.close()  # the end of its commands
            for process in self._ranks:
                process.wait(END_S)
        finally:
            for process in self._ranks:
                process.kill()
                process.wait()
            self._logs.cleanup()

    def ask(self, **command: Any) -> list[dict[str, Any]]:
        """Every rank's answer, in their order. Raises RankFailed."""
        line = json.dumps(command) + "\n"
        for rank, process in enumerate(self._ranks):
            assert process.stdin is not None
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except BrokenPipeError as error:
                raise self._failed(rank, command, "it has ended") from error
        return [self._answer(rank, command) for rank in range(len(self._ranks))]

    def _answer(self, rank: int, command: dict[str, Any]) -> dict[str, Any]:
        stdout = self._ranks[rank].stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise self._failed(rank, command, "it has ended")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise self._failed(rank, command, f"it raised {answer['failed']}")
        return answer

    def _failed(self, rank: int, command: dict[str, Any], why: str) -> RankFailed:
        """With what all of them wrote: one that ends takes the others along, and the cause is in its log."""
        lines = [f"rank {rank}, {command}: {why}"]
        for other in range(len(self._ranks)):
            lines += [f"-- rank {other}", *self._log(other).read_text().splitlines()[-LOG_LINES:]]
        return RankFailed("\n".join(lines))

    def _log(self, rank: int) -> Path:
        return Path(self._logs.name) / f"rank{rank}.txt"
