"""The command lines of the simulator and of the benchmark of policies, with the policies that the server has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench_policies import ATTAINMENT, Case, attempt, highest_rate, metrics, wrong
from sim_prices import SERVED, Roofline
from simulate import Replica, policy_of, with_slo
from traces import MIXES, poisson, write

from raydiance.serve.engine.policies import registry
from raydiance.serve.engine.policies.base import Rules
from raydiance.serve.engine.policies.tetriserve import TetriServe

LOAD_TESTS = Path(__file__).parents[2] / "load_tests"
WAN = SERVED["wan"]
ON_EIGHT = Replica(WAN, Roofline(WAN.model), 8, Rules())


def script(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(LOAD_TESTS / name), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("policy", registry.NAMES)
def test_every_policy_adds_up(policy: str) -> None:
    assert wrong(Case("poisson", 1, 300, "wan", None, ON_EIGHT), policy) == []


def test_the_highest_rate_is_between_one_that_is_reached_and_one_that_is_not() -> None:
    case = Case("poisson", 1, 600, "wan", None, ON_EIGHT)
    found = highest_rate(case, "fifo", 1.2)
    assert found is not None
    rate, run = found
    assert run.attainment >= ATTAINMENT
    assert run.goodput_per_s == pytest.approx(run.attainment * len(run.outcomes) / 600)
    assert attempt(case, "fifo", 1.2 * rate) is None
    assert highest_rate(Case("poisson", 1, 600, "wan", 0.9, ON_EIGHT), "fifo", 1.2) is None


def test_at_the_full_rate_every_rank_would_be_busy() -> None:
    case = Case("poisson", 1, 20_000, "wan", None, ON_EIGHT)
    trace = case.trace(case.full_rate())
    alone_s = [a.steps * (ON_EIGHT.prices.seconds(WAN.shape(a), 1) or 0.0) for a in trace]
    assert sum(alone_s) / (8 * 20_000) == pytest.approx(1.0, rel=0.05)


def test_ours_is_compared_with_the_peer_at_its_best_rounds_over_all_seeds() -> None:
    def row(seed: int, policy: str, goodput: float) -> dict[str, object]:
        return {"trace": "poisson", "ranks": 8, "seed": seed, "policy": policy, "goodput_per_s": goodput}

    rows = [row(1, "slack", 3.0), row(2, "slack", 5.0), row(1, "tetriserve:1", 1.0), row(2, "tetriserve:1", 1.0)]
    rows += [row(1, "tetriserve:3", 2.5), row(2, "tetriserve:3", 1.5), row(1, "fifo", 9.0), row(2, "fifo", 9.0)]
    assert {name: m["value"] for name, m in metrics(rows).items()} == {"sim_goodput_vs_tetriserve_8": 2.0}
    assert metrics([row(1, "slack", 1.0), row(1, "tetriserve:1", 0.0)]) == {}


def test_a_policy_with_rounds_is_named_with_their_length() -> None:
    assert policy_of("tetriserve:2.5") == TetriServe(2.5)
    for spec in ("slack:2", "tetriserve:0", "tetriserve:x", "lifo"):
        with pytest.raises(ValueError, match=r"policy|could not convert"):
            policy_of(spec)


def test_one_slo_for_all() -> None:
    trace = poisson(200, 0.5, 1, MIXES["wan"])
    assert {a.slo_scale for a in with_slo(trace, 1.5)} == {1.5}
    assert with_slo(trace, None) == trace


def test_the_simulator_prints_a_table_and_writes_every_request(tmp_path: Path) -> None:
    trace, file, out = poisson(200, 0.1, 1, MIXES["wan"]), tmp_path / "trace.jsonl", tmp_path / "run.json"
    write(trace, file)
    done = script("simulate.py", "--policy", "fifo", "slack", "--ranks", "8", "--trace", str(file), "--json", str(out))
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["policy", "fifo", "slack"]
    runs = json.loads(out.read_text())
    for policy in ("fifo", "slack"):
        assert len(runs[policy]["requests"]) == runs[policy]["summary"]["requests"] == len(trace)
        met = sum(request["met"] for request in runs[policy]["requests"])
        assert runs[policy]["summary"]["attainment"] == pytest.approx(met / len(trace))


def test_the_simulator_refuses_what_it_does_not_know() -> None:
    done = script("simulate.py", "--policy", "lifo")
    assert done.returncode == 2
    assert "lifo" in done.stderr


@pytest.mark.slow
def test_the_benchmark_runs_quickly_and_reports(tmp_path: Path) -> None:
    done = script("bench_policies.py", "--quick", "--json", str(tmp_path / "bench.json"))
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "bench.json").read_text())
    assert data["metrics"]["sim_goodput_vs_tetriserve_8"]["value"] > 0
    assert {row["policy"] for row in data["rows"]} >= {"slack", "tetriserve:10"}
