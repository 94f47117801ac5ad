"""How many replicas: within bounds and budget, more for more work, steady under noise, down to none and back."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiance.deploy.scaling import Decision, Rules, Signals, State, Work, decide, replicas_for

RULES = Rules(min_replicas=1, max_replicas=8, start_s=20.0)
works = st.lists(
    st.builds(
        Work,
        slack_s=st.one_of(st.floats(-50, 900), st.just(math.inf)),
        seconds=st.floats(0, 500),
        count=st.integers(1, 20),
        tier=st.sampled_from(["interactive", "standard", "batch"]),
    ),
    max_size=8,
)
all_rules = st.builds(
    Rules,
    min_replicas=st.integers(0, 3),
    max_replicas=st.integers(3, 12),
    cost_per_hour=st.floats(0, 5),
    max_spend_per_hour=st.one_of(st.none(), st.floats(0, 30)),
    spares=st.integers(0, 3),
    spare_percent=st.floats(0, 50),
    idle_s=st.floats(1, 60),
)


class Cluster:
    """Replicas that serve `start_s` after they were asked for; the clock is the test's."""

    def __init__(self, rules: Rules, *, live: int = 1, start_s: float = 20.0, tick_s: float = 0.5) -> None:
        self.rules, self.start_s, self.tick_s = rules, start_s, tick_s
        self.now, self.state = 1e6, State()
        self.live = self.target = live
        self.starting: list[float] = []
        self.arrived_s = 0.0
        self.targets: list[int] = []
        self.last: Decision | None = None

    def step(self, *work: Work, came_s: float = 0.0, age_s: float = 0.0) -> Decision:
        self.now += self.tick_s
        self.arrived_s += came_s
        self.live += sum(at <= self.now for at in self.starting)
        self.starting = [at for at in self.starting if at > self.now]
        signals = Signals(self.live, self.target, work, self.arrived_s, age_s)
        self.state, decision = decide(self.state, signals, self.rules, self.now)
        self.target = decision.replicas
        self.starting = self.starting[: max(self.target - self.live, 0)]
        self.starting += [self.now + self.start_s] * (self.target - self.live - len(self.starting))
        self.live = min(self.live, self.target)
        self.targets.append(self.target)
        self.last = decision
        return decision


def words(decision: Decision) -> list[str]:
    return [reason.word for reason in decision.reasons]


@given(all_rules, works, st.integers(0, 12), st.integers(0, 12), st.floats(0, 40), st.booleans())
def test_it_stays_within_bounds_and_budget(
    rules: Rules, work: list[Work], live: int, target: int, elsewhere: float, waking: bool
) -> None:
    signals = Signals(live, target, work, 0.0, 0.0, waking, elsewhere)
    _, decision = decide(State(), signals, rules, 1e6)
    assert rules.min_replicas <= decision.replicas <= rules.max_replicas
    if rules.max_spend_per_hour is not None and decision.replicas > rules.min_replicas:
        assert decision.replicas * rules.cost_per_hour <= max(rules.max_spend_per_hour - elsewhere, 0.0) + 1e-6
    assert decision.reasons


@given(works, st.builds(Work, slack_s=st.floats(-50, 900), seconds=st.floats(0, 500)), st.integers(0, 8))
def test_more_work_never_takes_fewer(work: list[Work], more: Work, live: int) -> None:
    def replicas(work: list[Work]) -> tuple[float, int]:
        _, decision = decide(State(), Signals(live, live, work), RULES, 1e6)
        return decision.wanted, decision.replicas

    assert all(a <= b + 1e-9 for a, b in zip(replicas(work), replicas([*work, more]), strict=True))


@pytest.mark.parametrize("level", [0.7, 1.6, 3.95, 4.05])
def test_a_constant_load_with_noise_does_not_make_it_oscillate(level: float) -> None:
    """An hour of samples of 4 s at random times, through a queue that those who live work off."""
    rng, cluster, queue = random.Random(1), Cluster(RULES), [0.0]
    for _ in range(7200):
        came = sum(4.0 for _ in range(4) if rng.random() < level * cluster.tick_s / 16)
        left_s = max(0.0, queue[-1] + came - cluster.live * cluster.tick_s)
        queue.append(left_s)
        work = [Work(60.0, left_s, math.ceil(left_s / 4.0))] if left_s else []
        cluster.step(*work, came_s=came)
    settled = cluster.targets[1200:]
    changes = sum(a != b for a, b in itertools.pairwise(settled))
    assert changes <= 10, changes  # in 50 minutes: five rises at most
    assert sum(settled) / len(settled) <= level / RULES.utilization + 2
    assert max(queue[1200:]) < 240


def test_many_at_once_for_a_burst_and_fewer_only_after_the_cool_down() -> None:
    cluster = Cluster(RULES)
    for _ in range(400):
        cluster.step()
    burst = [Work(60.0, 12.0) for _ in range(20)]
    assert cluster.step(*burst, came_s=240.0).replicas >= 5
    high = max(cluster.targets)
    for i in range(int(RULES.cooldown_s / cluster.tick_s) - 2):
        decision = cluster.step()
        assert decision.replicas >= high, i
    assert "cool-down" in words(decision)
    for _ in range(1200):
        cluster.step()
    assert cluster.target == 1
    assert cluster.targets == sorted(cluster.targets[:402]) + sorted(cluster.targets[402:], reverse=True)


def test_to_none_after_a_pause_and_from_none_to_many_at_once() -> None:
    cluster = Cluster(replace(RULES, min_replicas=0, idle_s=120.0))
    cluster.step(Work(30.0, 5.0), came_s=5.0)
    for _ in range(238):
        assert cluster.step().replicas == 1
    for _ in range(4):
        decision = cluster.step()
    assert (decision.replicas, words(decision)) == (0, ["idle"])
    for _ in range(50):
        assert cluster.step().replicas == 0
    assert cluster.step(*[Work(60.0, 30.0) for _ in range(8)], came_s=240.0).replicas >= 6
    assert decide(State(), Signals(0, 0, is_waking=True), cluster.rules, 0.0)[1].replicas == 1


def test_old_signals_hold_whatever_they_say() -> None:
    cluster = Cluster(replace(RULES, min_replicas=0, idle_s=5.0), live=3)
    for i in range(400):
        decision = cluster.step(Work(1.0, 1e6, 99), age_s=RULES.stale_s + 1 + i)
        assert (decision.replicas, words(decision)) == (3, ["stale"])
    held = cluster.step()
    assert held.replicas == 3, "the cool-down begins with the first that is fresh"


def test_what_can_wait_asks_for_less_than_what_cannot() -> None:
    def wanted(slack_s: float) -> int:
        return decide(State(), Signals(1, 1, [Work(slack_s, 60.0) for _ in range(10)]), RULES, 0.0)[1].replicas

    assert wanted(60.0) == 8
    assert wanted(math.inf) == 1
    assert wanted(60.0) > wanted(300.0) > wanted(math.inf)


@given(
    st.lists(st.builds(Work, slack_s=st.floats(40, 900), seconds=st.floats(0, 20)), max_size=8),
    st.lists(st.floats(0, 20), max_size=4).map(sorted),
)
def test_so_many_replicas_do_what_can_be_done_in_time_and_one_fewer_do_not(
    work: list[Work], ready_s: list[float]
) -> None:
    def is_done(num: int) -> bool:
        ready = [*ready_s, *[20.0] * num][:num]
        dues = [(a.slack_s, sum(b.seconds for b in work if b.slack_s <= a.slack_s)) for a in work]
        return all(sum(max(until_s - at, 0.0) for at in ready) >= due_s - 1e-6 for until_s, due_s in dues)

    found = replicas_for(work, ready_s, 20.0, RULES)
    assert is_done(math.ceil(found - 1e-9))
    assert found <= 1e-6 or not is_done(math.ceil(found - 1e-9) - 1) or found <= 1


def test_what_a_new_replica_cannot_help_asks_for_none() -> None:
    """10 s each within 15 s, where a start takes 20: two do three of ten, the rest by the drain."""
    lost = [Work(15.0, 10.0) for _ in range(10)]
    assert replicas_for(lost, [0.0, 0.0], 20.0, replace(RULES, drain_s=30.0)) == pytest.approx(2.0)
    assert replicas_for(lost, [0.0, 0.0], 2.0, RULES) > 7.0


def test_replicas_that_start_already_are_reckoned_with_from_when_they_serve() -> None:
    cluster = Cluster(RULES)
    asked = cluster.step(*[Work(60.0, 12.0) for _ in range(20)]).replicas
    for i in range(1, 39):
        slack_s = 60.0 - i * cluster.tick_s
        left = [Work(slack_s, 12.0 - i * cluster.tick_s / 20) for _ in range(20)]
        assert cluster.step(*left).replicas <= asked + 1, i


def test_one_long_sample_is_worth_one_replica() -> None:
    assert decide(State(), Signals(0, 0, [Work(1.0, 5000.0)]), RULES, 0.0)[1].replicas == 1


def test_the_time_until_a_replica_serves_is_measured() -> None:
    cluster = Cluster(RULES, start_s=47.0)
    assert cluster.step().start_s == RULES.start_s
    cluster.step(*[Work(60.0, 12.0) for _ in range(20)])
    for _ in range(200):
        decision = cluster.step(*[Work(60.0, 12.0) for _ in range(20)])
    assert decision.start_s == pytest.approx(47.0, abs=1.0)


def test_a_cap_on_spending_is_shared_and_named() -> None:
    rules = replace(RULES, cost_per_hour=2.5, max_spend_per_hour=12.0)
    signals = Signals(1, 1, [Work(30.0, 100.0) for _ in range(20)], spent_elsewhere=4.0)
    decision = decide(State(), signals, rules, 0.0)[1]
    assert (decision.replicas, words(decision)[-1]) == (3, "spend")
    assert "max_spend_per_hour=12, 4 spent elsewhere" in str(decision)


def test_spares_come_on_top_by_number_and_by_share() -> None:
    work = [Work(math.inf, 2400.0, 40)]
    plain = decide(State(), Signals(1, 1, work), RULES, 0.0)[1].replicas
    assert plain == 4
    assert decide(State(), Signals(1, 1, work), replace(RULES, spares=2), 0.0)[1].replicas == 6
    assert decide(State(), Signals(1, 1, work), replace(RULES, spare_percent=25.0), 0.0)[1].replicas == 5
