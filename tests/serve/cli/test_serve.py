"""`raydiance serve`: what it says, where it listens, how it ends."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import psutil
import pytest
from tests.serve.cli.command import start
from tests.servers import Server, free_port


def test_serve_stops_on_sigterm(tmp_path: Path) -> None:
    port = free_port()
    process = start("serve", "--port", str(port), RAYDIANCE_DATA=str(tmp_path / "data"))
    try:
        assert process.stdout is not None
        greeting = ""
        while "Ctrl-C" not in greeting:
            line = process.stdout.readline()
            assert line, process.stderr and process.stderr.read()
            greeting += line
        assert f"http://127.0.0.1:{port}" in greeting
        assert "curl" in greeting
        assert (tmp_path / "data" / "jobs.db").exists()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "stopped" in err
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/healthz")


def test_a_local_cluster_listens_on_loopback_alone(server: Server) -> None:
    """But for one port of each Serve replica, which asks for Ray's token."""
    pids = {name: set(server.pids(name)) for name in ("", "ServeReplica")}
    exposed = {pid for pid in pids[""] - pids["ServeReplica"] for _ in _exposed_ports(pid)}
    assert not exposed, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in exposed]
    assert all(len(_exposed_ports(pid)) <= 1 for pid in pids["ServeReplica"])


def _exposed_ports(pid: int) -> list[int]:
    """Ports that a process listens on at an address other than loopback."""
    return [
        c.laddr.port
        for c in psutil.Process(pid).net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and not c.laddr.ip.removeprefix("::ffff:").startswith("127.")
    ]
