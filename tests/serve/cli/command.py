"""The command as a person types it, in a process of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

from PIL import Image

# as a terminal starts it: what a shell runs in the background inherits that Ctrl-C is ignored
START = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from raydiance.serve.cli import main, remote; remote.DEFAULT_URL = {url!r}; main()"
)
PROMPT = "a large red circle moves right on a white background"
UNREACHABLE = "http://127.0.0.1:9"


def start(
    *args: str | Path, cwd: Path | None = None, default_url: str = UNREACHABLE, **env: str
) -> subprocess.Popen[str]:
    """Args:
    default_url: where it looks for a server that it is told nothing of; whatever is at port 8000, is not looked at.
    """
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("RAYDIANCE_", "RAY_"))}
    return subprocess.Popen(
        [sys.executable, "-c", START.format(url=default_url), *map(str, args)],
        cwd=cwd,
        env=clean | {"NO_COLOR": "1", "COLUMNS": "120"} | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*args: str | Path, code: int = 0, cwd: Path | None = None, **env: str) -> tuple[str, str]:
    """What it wrote to stdout and stderr. There is never a traceback."""
    process = start(*args, cwd=cwd, **env)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
    assert "Traceback" not in out + err
    return out, err


def png(colour: str = "red") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32), colour).save(buffer, format="PNG")
    return buffer.getvalue()
