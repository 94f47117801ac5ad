"""Network namespaces, one a rank, with links whose rate `tc … tbf` shapes; all of them are removed in the end.

Two ranks are joined by one veth pair, more by a bridge in a namespace of its own. Every end is shaped on its way out,
so that a rank sends and receives at the rate, both at once.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType

LINK = "link0"
PREFIX = "rdoverlap"
UNSHAPED = "unshaped"
BURST = "128kb"  # room for one segment as TCP hands it to the device (64 kB); smaller ones cost rate
LATENCY = "50ms"  # of what may queue; TCP keeps less under way than that, so that nothing is dropped
RATE = re.compile(r"[1-9][0-9]*(kbit|mbit|gbit)")


class NoNamespaces(RuntimeError):
    """This user or machine cannot make them; the text says what is missing."""


def check_possible() -> None:
    """Raises NoNamespaces."""
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        raise NoNamespaces(f"{' and '.join(missing)} not found (Debian and Ubuntu: apt install iproute2)")
    if os.geteuid() != 0:
        raise NoNamespaces("network namespaces are made by root: run it with sudo")


def check_rate(rate: str) -> str:
    """`rate` itself. Raises ValueError for what is neither `unshaped` nor as in 200mbit."""
    if rate != UNSHAPED and RATE.fullmatch(rate) is None:
        raise ValueError(f"a rate is {UNSHAPED} or a number and kbit, mbit or gbit (200mbit), not {rate!r}")
    return rate


def sent_bytes() -> int:
    """What this process's namespace has sent over its link."""
    return int(Path(f"/sys/class/net/{LINK}/statistics/tx_bytes").read_text())


class Network:
    """A context manager. Raises NoNamespaces where it cannot be made, and RuntimeError with what ip or tc said."""

    def __init__(self, ranks: int) -> None:
        if not 2 <= ranks <= 250:
            raise ValueError(f"a network is made for 2 to 250 ranks, not {ranks}")
        self.ranks = ranks
        self._names = [f"{PREFIX}{os.getpid()}r{rank}" for rank in range(ranks)]
        self._bridge = f"{PREFIX}{os.getpid()}b" if ranks > 2 else None
        self._shaped = False
        self._old_handler: object = None

    def __enter__(self) -> Network:
        check_possible()
        remove_stale()
        self._old_handler = signal.signal(signal.SIGTERM, _exit)  # as Ctrl-C: what is open is closed
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._remove()

    def address(self, rank: int) -> str:
        return f"10.77.0.{rank + 1}"

    def command(self, rank: int, program: Sequence[str]) -> list[str]:
        """Runs `program` inside the rank's namespace; ip becomes it, so that its pid is the program's."""
        return ["ip", "netns", "exec", self._names[rank], *program]

    def shape(self, rate: str) -> None:
        """Of all links at once, also while they are used."""
        check_rate(rate)
        for namespace, device in self._ends():
            if rate != UNSHAPED:
                tbf = ("tbf", "rate", rate, "burst", BURST, "latency", LATENCY)
                _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *tbf)
            elif self._shaped:
                _run("tc", "-n", namespace, "qdisc", "del", "dev", device, "root")
        self._shaped = rate != UNSHAPED

    def _ends(self) -> list[tuple[str, str]]:
        """Namespace and device."""
        ends = [(name, LINK) for name in self._names]
        return ends + ([(self._bridge, f"port{rank}") for rank in range(self.ranks)] if self._bridge else [])

    def _make(self) -> None:
        for name in (*self._names, self._bridge):
            if name is not None:
                _run("ip", "netns", "add", name)
        if self._bridge is None:
            first, second = self._names
            _run("ip", "-n", first, "link", "add", LINK, "type", "veth", "peer", "name", LINK, "netns", second)
        else:
            self._join(self._bridge)
        for rank, name in enumerate(self._names):
            _run("ip", "-n", name, "address", "add", f"{self.address(rank)}/24", "dev", LINK)
            _up(name, "lo")  # rank 0 talks to its own address over it
            _up(name, LINK)

    def _join(self, bridge: str) -> None:
        _run("ip", "-n", bridge, "link", "add", "bridge0", "type", "bridge")
        _up(bridge, "bridge0")
        for rank, name in enumerate(self._names):
            port = f"port{rank}"
            _run("ip", "-n", name, "link", "add", LINK, "type", "veth", "peer", "name", port, "netns", bridge)
            _run("ip", "-n", bridge, "link", "set", port, "master", "bridge0")
            _up(bridge, port)

    def _remove(self) -> None:
        signal.signal(signal.SIGTERM, self._old_handler)  # type: ignore[arg-type]
        _remove_namespaces([name for name in _namespaces() if name in {*self._names, self._bridge}])


def remove_stale() -> list[str]:
    """Removes what a benchmark that was killed (SIGKILL) left behind; their names."""
    stale = []
    for name in _namespaces():
        made = re.fullmatch(rf"{PREFIX}([0-9]+)(r[0-9]+|b)", name)
        if made is not None and not Path(f"/proc/{made[1]}").exists():
            stale.append(name)
    _remove_namespaces(stale)
    return stale


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line.strip()]


def _remove_namespaces(names: Sequence[str]) -> None:
    for name in names:
        for pid in _run("ip", "netns", "pids", name).split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue  # ended by itself since
        _run("ip", "netns", "delete", name)


def _up(namespace: str, device: str) -> None:
    if device != "lo":
        _run("ip", "-n", namespace, "link", "set", device, "addrgenmode", "none")  # IPv4 only
    _run("ip", "-n", namespace, "link", "set", device, "up")


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
