"""The simulator of replicas that come and go, and Serve's default policy in it, beside the real one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace

import pytest
from bench_autoscaling import best_within, cheapest
from ray.serve import autoscaling_policy
from ray.serve.config import AutoscalingConfig
from sim_scalers import Ours, ServeConfig, ServeDefault
from sim_scaling import Outcome, Sample, Scaler, Simulation, View
from trace_arrival import Arrival
from trace_bursts import BURSTS, FACTOR, bursts
from traces import MIXES

from raydiance.deploy.scaling import Rules


def arrival(at_s: float, slo_scale: float = 5.0, tier: str = "interactive") -> Arrival:
    return Arrival(at_s, "s", "t", tier, "image", "64x64", 10, 1, slo_scale)


@dataclass
class Steps:
    """So many replicas from each second on."""

    counts: dict[float, int]

    def replicas(self, view: View) -> int:
        return [count for since, count in self.counts.items() if since <= view.now][-1]


def test_one_replica_by_hand() -> None:
    found = Simulation([arrival(0), arrival(0), arrival(1)], lambda _: 10.0, Steps({0: 1}), 60.0).run()
    assert sorted(s.end_s for s in found.samples) == [10.0, 20.0, 30.0]
    assert found.gpu_s == 30.0
    assert found.attainment() == 1.0
    assert not found.mistakes()


def test_a_replica_serves_when_it_has_started_and_is_paid_for_since_it_was_asked_for() -> None:
    found = Simulation([arrival(0), arrival(0)], lambda _: 10.0, Steps({0: 2}), 4.0).run()
    assert sorted(s.end_s for s in found.samples) == [10.0, 14.0]
    assert found.gpu_s == 28.0


def test_what_is_scaled_away_hands_back_what_it_has_not_done() -> None:
    found = Simulation([arrival(0), arrival(0)], lambda _: 10.0, Steps({0: 2, 3: 1}), 0.0, num_initial=2).run()
    assert max(s.end_s for s in found.samples) == pytest.approx(17.0)
    assert found.gpu_s == pytest.approx(17.0 + 3.0)
    assert not found.mistakes()


def test_what_cannot_be_in_time_comes_last() -> None:
    late, fine = arrival(0, slo_scale=0.5), arrival(0, slo_scale=1.5)
    found = Simulation([late, fine], lambda _: 10.0, Steps({0: 1}), 0.0).run()
    assert [s.end_s for s in found.samples] == [20.0, 10.0]


def test_our_copy_of_the_default_decides_as_serve_does() -> None:
    """Serve's own functions, with its own configuration, on a random walk."""
    rng = Random(3)
    for _ in range(20):
        config = ServeConfig(
            target_ongoing_requests=rng.choice([0.5, 1, 2, 4]),
            upscale_delay_s=rng.choice([0, 5, 30]),
            downscale_delay_s=rng.choice([10, 60]),
            upscaling_factor=rng.choice([0.5, 1.0]),
            downscaling_factor=rng.choice([0.5, 1.0]),
            min_replicas=rng.choice([0, 1]),
            max_replicas=20,
        )
        theirs = AutoscalingConfig(
            **{
                name: getattr(config, name)
                for name in (
                    "target_ongoing_requests",
                    "upscale_delay_s",
                    "downscale_delay_s",
                    "upscaling_factor",
                    "downscaling_factor",
                    "min_replicas",
                    "max_replicas",
                )
            }
        )
        copy, state, target, current = ServeDefault(config), {}, 1, 1
        for second in range(400):
            requests = max(0.0, 10 + 12 * math.sin(second / 40) + rng.uniform(-3, 3))
            real = _theirs(theirs, state, float(second), current, target, requests)
            assert copy.decide(float(second), current, target, requests) == real, (config, second)
            target = real
            current += (target > current) - (target < current)


def _theirs(
    config: AutoscalingConfig, state: dict[str, object], now: float, current: int, target: int, requests: float
) -> int:
    ctx = SimpleNamespace(
        current_num_replicas=current, target_num_replicas=target, total_num_requests=requests, config=config
    )
    cold = autoscaling_policy._get_cold_start_scale_up_replicas(ctx)
    if cold is not None:
        return _bounded(config, cold)
    desired, _ = autoscaling_policy._core_replica_queue_length_policy(ctx)
    if current == 0:
        return _bounded(config, desired)
    desired = autoscaling_policy._apply_scaling_factors(desired, current, config)
    decided, _ = autoscaling_policy._apply_delay_logic(max(0, desired), target, config, state, _now=now)
    return _bounded(config, decided)


def _bounded(config: AutoscalingConfig, replicas: int) -> int:
    return max(config.min_replicas, min(config.max_replicas, replicas))


def test_sessions_come_eight_times_as_often_in_a_burst() -> None:
    trace = bursts(3600, 0.5, 1, MIXES["flux"])
    first = {a.session: a.at_s for a in reversed(trace)}
    burst_s = sum(end - start for start, end in BURSTS)
    inside = sum(any(start <= at < end for start, end in BURSTS) for at in first.values()) / burst_s
    outside = (len(first) - inside * burst_s) / (3600 - burst_s)
    assert 0.6 * FACTOR < inside / outside < 1.4 * FACTOR
    assert bursts(3600, 0.5, 1, MIXES["flux"]) == trace


SCALERS = [Ours(Rules(max_replicas=8, start_s=20.0)), ServeDefault(ServeConfig(max_replicas=8))]


@pytest.mark.parametrize("scaler", SCALERS, ids=["ours", "serve"])
def test_policies_end_what_comes(scaler: Scaler) -> None:
    trace = [arrival(float(i // 3)) for i in range(90)]
    found = Simulation(trace, lambda _: 4.0, scaler, 20.0).run()
    assert not found.mistakes()
    assert 1 < found.peak <= 8


def outcome(gpu_hours: float, met: int) -> Outcome:
    """Of ten requests, so many of them met."""
    samples = (Sample(i, arrival(0), 1.0, 5.0, 0.0, 1.0 if i < met else 9.0) for i in range(10))
    return Outcome(tuple(samples), gpu_hours * 3600, 1, 0)


def test_the_default_beside_ours_is_the_best_that_costs_no_more_and_the_cheapest_that_meets_as_many() -> None:
    found = {"poor": outcome(2, 5), "fair": outcome(4, 7), "worse": outcome(5, 6), "good": outcome(9, 9)}
    assert [best_within(found, hours)[0] for hours in (1, 4.5, 8, 9)] == ["poor", "fair", "fair", "good"]
    assert [cheapest(found, met)[0] for met in (0.5, 0.6, 0.8, 1.0)] == ["poor", "fair", "good", "good"]
