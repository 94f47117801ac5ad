"""A program of the tests that runs apart from them and is asked by pipe: commands and answers are lines of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STOP_TIMEOUT_S = 60


class Piped:
    """Args:
    module: is run with the arguments; the end of its input is the end of it.

    Attributes:
        started: its first line.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", module, *arguments]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.started: dict[str, Any] = self._answer()

    def ask(self, name: str, **arguments: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": name, **arguments}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the program ended with {self.process.wait()}"
        return json.loads(line)

    def stop(self) -> None:
        with self.process:  # closes its pipes, which is the end of its commands
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                self.process.wait(STOP_TIMEOUT_S)
            finally:
                self.process.kill()
