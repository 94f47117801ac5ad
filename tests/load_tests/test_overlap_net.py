"""The overlap benchmark's network: real namespaces where this user can make them, and clear words where not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import overlap_net
import pytest
from overlap_net import PREFIX, Network, NoNamespaces, check_rate, remove_stale

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None,
    reason="network namespaces need root, ip and tc",
)
SEND = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], 5000)) if sys.argv[2] == "receive" else None
if listener is not None:
    print("ready", flush=True)
    peer = listener.accept()[0]
    while peer.recv(1 << 20):
        pass
    peer.sendall(b"got it")
else:
    started = time.perf_counter()
    peer = socket.create_connection((sys.argv[1], 5000), timeout=30)
    peer.sendall(bytes(1 << 20))
    peer.shutdown(socket.SHUT_WR)
    assert peer.recv(100) == b"got it"
    print(time.perf_counter() - started, open("/sys/class/net/link0/statistics/tx_bytes").read())
"""


def mine() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.startswith(f"{PREFIX}{os.getpid()}")]


def send_a_mebibyte(network: Network) -> tuple[float, int]:
    """From the last rank to rank 0: seconds, and what the last one's link has sent."""
    receive, send = (
        network.command(rank, [sys.executable, "-c", SEND, network.address(0), what])
        for rank, what in ((0, "receive"), (network.ranks - 1, "send"))
    )
    with subprocess.Popen(receive, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n"
        done = subprocess.run(send, capture_output=True, text=True, timeout=60, check=True)
    seconds, sent = done.stdout.split()
    return float(seconds), int(sent)


@needs_root
@pytest.mark.parametrize("ranks", [2, 3])
def test_links_are_shaped_counted_and_removed(ranks: int) -> None:
    with Network(ranks) as network:
        network.shape("10mbit")
        slow_s, sent = send_a_mebibyte(network)
        assert slow_s > 0.7  # 0.84 s less the burst
        assert 1 << 20 < sent < 1.1 * (1 << 20)
        network.shape("unshaped")
        unshaped_s, sent_again = send_a_mebibyte(network)
        assert unshaped_s < 0.5 * slow_s
        assert sent < sent_again < 2.2 * (1 << 20)
        network.shape("unshaped")
        assert mine()
    assert not mine()


@needs_root
def test_namespaces_are_removed_when_what_runs_in_them_fails() -> None:
    sleepers = []

    def fail() -> None:
        with Network(2) as network:
            sleepers.append(subprocess.Popen(network.command(1, ["sleep", "100"])))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    (sleeper,) = sleepers
    assert sleeper.wait(10) == -9
    assert not mine()


@needs_root
def test_what_a_killed_benchmark_left_is_removed_by_the_next_one() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = f"{PREFIX}{ended.pid}r0"
    subprocess.run(["ip", "netns", "add", left], check=True)
    with Network(2):
        assert left not in remove_stale()
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        assert left not in listed
        assert len(mine()) == 2  # those of a living one are left alone


def test_a_user_who_is_not_root_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NoNamespaces, match="made by root"):
        overlap_net.check_possible()


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else f"/sbin/{tool}")
    with pytest.raises(NoNamespaces, match=r"^tc not found"):
        overlap_net.check_possible()


@pytest.mark.parametrize("rate", ["200", "0mbit", "fast", "200 mbit", "200mbit; reboot"])
def test_a_rate_is_a_number_with_a_unit(rate: str) -> None:
    with pytest.raises(ValueError, match="a rate is"):
        check_rate(rate)


@pytest.mark.parametrize("rate", ["200mbit", "1gbit", "64kbit", "unshaped"])
def test_rates(rate: str) -> None:
    assert check_rate(rate) == rate
