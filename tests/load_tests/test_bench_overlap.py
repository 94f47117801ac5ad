"""The overlap benchmark's driver, with ranks that are made up; and once with real ones."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import bench_overlap
import pytest
from bench_overlap import Bench, WrongOutputs

SCRIPT = Path(bench_overlap.__file__)
ARMS = [
    {"name": name, "layout": "sequence", "role": "step", "works": 1, "wire_bytes": None, "process": process}
    for name, process in (("a", "shared"), ("b", "shared"), ("c", "own"))
]


class FakeNetwork:
    def __init__(self) -> None:
        self.rates: list[str] = []

    def shape(self, rate: str) -> None:
        self.rates.append(rate)


class FakeWorld:
    """Two ranks; the second one takes longer and sends less."""

    asked: list[tuple[int, str]]
    first: list[float | None] = [0.0, None]  # noqa: RUF012
    second: list[float | None] = [0.0, 0.0]  # noqa: RUF012

    def __init__(self, _network: Any, port: int) -> None:
        self.port = port

    def __enter__(self) -> FakeWorld:
        return self

    def __exit__(self, *_: object) -> None:
        self.asked.append((self.port, "exit"))

    def ask(self, **command: Any) -> list[dict[str, Any]]:
        self.asked.append((self.port, command.get("arm", command["do"])))
        if command["do"] == "row":
            return [{"arms": ARMS, "versions": {"torch": "1"}}] * 2
        return [
            {"seconds": s, "sent_bytes": b, "errors": e} for s, b, e in ((1.0, 9, self.first), (2.0, 8, self.second))
        ]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorld]:
    fake = type("World", (FakeWorld,), {"asked": []})
    monkeypatch.setattr(bench_overlap, "World", fake)
    return fake


def test_arms_alternate_in_their_processes(world: type[FakeWorld]) -> None:
    network = FakeNetwork()
    with contextlib.ExitStack() as worlds:
        bench = Bench(network, worlds, ["wan-free"], ["200mbit", "1gbit"])  # type: ignore[arg-type]
        bench.prepare()
        first, second = bench_overlap.FIRST_PORT, bench_overlap.FIRST_PORT + 1
        assert world.asked == [(first, "row"), (second, "row")]
        for seed in range(3):
            bench.round(seed, keep=seed > 0)
    steps = [asked for asked in world.asked[2:] if asked[1] != "exit"]
    assert sorted(network.rates) == ["1gbit"] * 3 + ["200mbit"] * 3
    assert [sorted(steps[i : i + 3]) for i in range(0, 18, 3)] == [[(first, "a"), (first, "b"), (second, "c")]] * 6
    assert len({tuple(steps[i : i + 3]) for i in range(0, 18, 3)}) > 1  # in changing order
    slow, _ = bench.figures()
    assert slow.seconds == {name: [2.0, 2.0] for name in "abc"}  # the slowest rank's, without the first round's
    assert slow.sent_bytes == {name: [9, 9] for name in "abc"}
    assert world.asked[-2:] == [(second, "exit"), (first, "exit")]


NAN = float("nan")


@pytest.mark.parametrize(
    ("first", "second", "shown"),
    [
        ([0.0, 0.0], [2e-4, 0.0], r"[0.0, 0.0002]"),
        ([0.0, 0.0], [0.0, NAN], r"[0.0, nan]"),
        ([NAN, None], [0.0, 0.0], r"[nan, 0.0]"),
        ([0.0, None], [0.0, None], r"[]"),
    ],
    ids=["too far off", "not a number", "on the first rank only", "an output that no rank has"],
)
def test_a_wrong_arm_ends_it(
    world: type[FakeWorld], first: list[float | None], second: list[float | None], shown: str
) -> None:
    world.first, world.second = first, second
    with contextlib.ExitStack() as worlds:
        bench = Bench(FakeNetwork(), worlds, ["flux"], ["1gbit"])  # type: ignore[arg-type]
        bench.prepare()
        with pytest.raises(WrongOutputs, match=rf"flux at 1gbit: [abc] is {re.escape(shown)} off"):
            bench.round(0, keep=False)


def test_of_wrong_outputs_nothing_is_reported(
    world: type[FakeWorld], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.second = [1.0, 0.0]
    monkeypatch.setattr(bench_overlap, "check_peers", lambda: None)
    monkeypatch.setattr(bench_overlap, "Network", lambda _ranks: contextlib.nullcontext(FakeNetwork()))
    monkeypatch.setattr(sys, "argv", ["bench_overlap.py", "--quick", "--json", str(tmp_path / "out.json")])
    assert bench_overlap.main() == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "not reported: " in said.err
    assert not list(tmp_path.iterdir())


def test_a_missing_peer_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "einops" else object())
    monkeypatch.setattr(sys, "argv", ["bench_overlap.py"])
    assert bench_overlap.main() == 1
    assert capsys.readouterr().err == "not reported: einops not found: pip install -e '.[bench]'\n"


@pytest.mark.bench
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("tc") is None, reason="network namespaces need root, ip and tc")
def test_real_ranks(tmp_path: Path) -> None:
    """Peers and layouts compute what the whole forward does, and send what their formulas say."""
    file = tmp_path / "out.json"
    command = [sys.executable, str(SCRIPT), "--rounds", "1", "--rates", "1gbit", "--json", str(file)]
    rows = ["wan-pair"]
    done = subprocess.run([*command, "--rows", *rows], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    written = json.loads(file.read_text())
    assert [(figures["row"], figures["rate"]) for figures in written["rows"]] == [("wan-pair", "1gbit")]
    names = {arm["name"] for arm in written["rows"][0]["arms"]}
    assert {"diffusers", "one branch a rank", "one request a rank", "communication alone"} <= names
    assert "wan-pair at 1gbit, 1 rounds" in done.stdout
