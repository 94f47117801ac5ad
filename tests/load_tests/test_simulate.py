"""The simulator: against cases computed by hand, a queue's formula, and what can never be."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import pytest
import yaml
from sim_clock import PlanBroken, Simulation, Stuck
from sim_prices import SERVED, Fixed, Roofline, isolated_s
from sim_results import Run, mistakes, nearest_rank
from trace_arrival import Arrival
from traces import MIXES, Ask, Mix, agents, humans, poisson

from raydiance.deploy.profile import ROOT as PROFILES
from raydiance.parallel.mesh import Subgroup
from raydiance.serve.engine.policies.base import Assignment, Candidate, Plan, Policy, Prices, Ranks, Reason, Rules
from raydiance.serve.engine.ways import Shape

SECOND = Fixed(1.0)
WAN = SERVED["wan"]


@dataclass(frozen=True)
class Sorted:
    """Each on one rank, or on `degree`, in the order of a key; up to `batch` that may share a forward together."""

    by: Callable[[Candidate], float] = lambda candidate: 0.0
    batch: int = 1
    degree: int = 1

    def plan(self, now: float, candidates: Sequence[Candidate], ranks: Ranks, prices: Prices, rules: Rules) -> Plan:
        starts = [s for s in range(0, ranks.size, self.degree) if ranks.free >= set(range(s, s + self.degree))]
        waiting, assignments = sorted(candidates, key=self.by), []
        for start in starts:
            if not waiting:
                break
            ids = tuple(c.id for c in waiting if c.key == waiting[0].key)[: self.batch]
            assignments.append(Assignment(ids, Subgroup(start, self.degree), Reason.IN_ORDER))
            waiting = [c for c in waiting if c.id not in ids]
        return Plan(tuple(assignments), {c.id: Reason.OTHERS_FIRST for c in waiting})


FIFO = Sorted()
EDF = Sorted(lambda candidate: candidate.deadline)


@dataclass(frozen=True)
class Says:
    """A policy that is a function of time and candidates."""

    assign: Callable[[float, Sequence[Candidate]], Sequence[Assignment]]

    def plan(self, now: float, candidates: Sequence[Candidate], ranks: Ranks, prices: Prices, rules: Rules) -> Plan:
        return Plan(tuple(self.assign(now, candidates)), {})


def asked(at_s: float, steps: int, slo_scale: float = 10.0, num: int = 1, size: str = "16x16") -> Arrival:
    return Arrival(at_s, "s", "t", "standard", "image", size, steps, num, slo_scale)


def one_token(arrival: Arrival) -> Shape:
    return Shape(1)


def run(
    trace: Sequence[Arrival],
    policy: Policy,
    prices: Fixed | Roofline = SECOND,
    num_ranks: int = 1,
    stint_s: float = 0.0,
) -> Run:
    """A right one."""
    shape_of = one_token if isinstance(prices, Fixed) else WAN.shape
    done = Simulation(trace, policy, prices, shape_of, num_ranks, stint_s=stint_s, keep=True).run()
    assert mistakes(done) == []
    return done


def finishes(done: Run) -> list[float]:
    return [outcome.finish_s for outcome in done.outcomes]


def test_first_come_first_served() -> None:
    done = run([asked(0.0, 3), asked(0.5, 2)], FIFO)
    assert finishes(done) == [3.0, 5.0]
    assert [o.latency_s for o in done.outcomes] == [3.0, 4.5]
    assert [o.longest_wait_s for o in done.outcomes] == [0.0, 2.5]
    assert [o.preemptions for o in done.outcomes] == [0, 0]
    assert done.utilisation == 1.0


def test_the_earliest_deadline_takes_the_rank_between_steps() -> None:
    done = run([asked(0.0, 3), asked(0.5, 2, slo_scale=1.5)], EDF)
    assert finishes(done) == [5.0, 3.0]
    assert [o.deadline_s for o in done.outcomes] == [30.0, 3.5]
    assert [o.preemptions for o in done.outcomes] == [1, 0]
    assert [o.longest_wait_s for o in done.outcomes] == [2.0, 0.5]
    assert done.attainment == 1.0


def test_a_deadline_is_met_at_it_and_missed_after_it() -> None:
    done = run([asked(0.0, 2, slo_scale=1.0), asked(0.0, 2, slo_scale=1.9)], FIFO)
    assert [o.met for o in done.outcomes] == [True, False]
    assert done.attainment == 0.5
    assert done.goodput_per_s == 1 / 4


def test_ranks_idle_until_the_next_request() -> None:
    done = run([asked(0.0, 1), asked(9.0, 1)], FIFO)
    assert finishes(done) == [1.0, 10.0]
    assert done.utilisation == 0.2


def test_several_ranks_work_at_once_and_ends_at_one_time_are_one_event() -> None:
    done = run([asked(0.0, 2), asked(0.0, 2), asked(0.0, 1)], FIFO, num_ranks=2)
    assert finishes(done) == [2.0, 2.0, 3.0]
    assert done.num_plans == 3
    assert done.busy_gpu_s == 5.0


def test_a_batch_advances_together_and_shares_its_gpu_seconds() -> None:
    done = run([asked(0.0, 2), asked(0.0, 3)], Sorted(batch=2))
    assert finishes(done) == [4.0, 5.0]
    assert [o.gpu_s for o in done.outcomes] == [2.0, 3.0]


def test_what_comes_in_the_middle_of_a_step_joins_at_the_next() -> None:
    done = run([asked(0.0, 2), asked(0.1, 1)], Sorted(batch=2))
    assert finishes(done) == [3.0, 3.0]


def test_a_request_is_done_with_its_last_sample() -> None:
    done = run([asked(0.0, 2, num=3)], FIFO, num_ranks=2)
    assert finishes(done) == [4.0]
    assert done.outcomes[0].gpu_s == 6.0


def test_a_split_request_costs_what_the_degree_costs() -> None:
    prices = Roofline(WAN.model, overhead_s=0.01)
    arrival = asked(0.0, 4, size="1280x720")
    alone = prices.seconds(WAN.shape(arrival), 1)
    assert alone is not None
    done = run([arrival], Sorted(degree=4), prices, num_ranks=4)
    assert finishes(done) == pytest.approx([4 * ((alone - 0.01) / 4 * 1.17**2 + 0.01)])
    assert done.outcomes[0].gpu_s == pytest.approx(4 * finishes(done)[0])


def test_changes_of_degree_are_counted() -> None:
    def wider(now: float, candidates: Sequence[Candidate]) -> list[Assignment]:
        size = {4: 1, 3: 2, 2: 2, 1: 1}[candidates[0].remaining_steps]
        return [Assignment((candidates[0].id,), Subgroup(0, size), Reason.SPARE)]

    done = run([asked(0.0, 4, size="832x480")], Says(wider), Roofline(WAN.model), num_ranks=2)
    assert done.outcomes[0].degree_changes == 2
    assert done.outcomes[0].preemptions == 0


def test_a_policy_sees_how_long_one_waits_and_how_long_one_has_run() -> None:
    seen: list[tuple[float, str, float, float | None]] = []

    def in_turns(now: float, candidates: Sequence[Candidate]) -> list[Assignment]:
        seen.extend((now, c.id, c.since, c.running_since) for c in candidates)
        chosen = candidates[-1] if now == 2 else candidates[0]
        return [Assignment((chosen.id,), Subgroup(0, 1), Reason.IN_ORDER)]

    run([asked(0.0, 3), asked(0.0, 1)], Says(in_turns))
    assert seen == [
        (0.0, "0.0", 0.0, None),
        (0.0, "1.0", 0.0, None),
        (1.0, "0.0", 1.0, 0.0),
        (1.0, "1.0", 0.0, None),
        (2.0, "0.0", 2.0, 0.0),
        (2.0, "1.0", 0.0, None),
        (3.0, "0.0", 2.0, None),
    ]


def test_the_mean_wait_at_one_server_is_that_of_the_formula() -> None:
    """Pollaczek and Khinchine, for service times that are all the same: wait = load x service / (2 (1 - load))."""
    for load in (0.5, 0.8):
        trace = poisson(40_000, load / 2, 7, Mix((Ask("16x16", 2),)))
        done = Simulation(trace, FIFO, SECOND, one_token, 1, stint_s=10.0).run()
        waits = [o.latency_s - 2 for o in done.outcomes]
        assert fmean(waits) == pytest.approx(load * 2 / (2 * (1 - load)), rel=0.1)
        assert done.utilisation == pytest.approx(load, abs=0.01)
        free_s = itertools.accumulate(trace, lambda free, a: max(free, a.at_s) + 2, initial=0.0)
        assert [o.finish_s for o in done.outcomes] == pytest.approx(list(free_s)[1:])


def test_steps_planned_at_once_change_nothing_where_nothing_else_comes() -> None:
    trace = [asked(0.0, 7), asked(0.0, 5)]
    one_by_one, at_once = run(trace, FIFO), run(trace, FIFO, stint_s=3.5)
    assert finishes(one_by_one) == finishes(at_once) == [7.0, 12.0]
    assert (one_by_one.num_plans, at_once.num_plans) == (12, 5)


@pytest.mark.parametrize("make", [poisson, agents, humans])
@pytest.mark.parametrize("policy", [Sorted(batch=4), Sorted(lambda c: c.deadline, degree=2)], ids=["fifo", "edf"])
@pytest.mark.parametrize("stint_s", [0.0, 0.5])
def test_whole_traces_add_up_and_come_out_the_same_again(
    make: Callable[..., list[Arrival]], policy: Policy, stint_s: float
) -> None:
    trace, prices = make(500, 0.15, 3, MIXES["wan"]), Roofline(WAN.model)
    done = run(trace, policy, prices, 8, stint_s)
    assert len(done.outcomes) == len(trace) > 20
    steps = sum(stint.num_steps * len(stint.assignment.ids) for stint in done.stints)
    assert steps == sum(a.steps * a.num for a in trace)
    assert run(trace, policy, prices, 8, stint_s) == done


def test_a_run_is_given_up_when_its_attainment_cannot_be_reached_any_more() -> None:
    trace = [asked(float(i), 2, slo_scale=1.5) for i in range(100)]
    ended = Simulation(trace, FIFO, SECOND, one_token, 1, give_up_below=0.9).run()
    assert ended.gave_up
    assert sum(math.isinf(o.finish_s) for o in ended.outcomes) > 50
    met = Simulation(trace, FIFO, SECOND, one_token, 2, give_up_below=0.9).run()
    assert not met.gave_up
    assert met.attainment == 1.0


def test_a_policy_may_wait_though_all_ranks_are_free_but_not_for_ever() -> None:
    def from_five_on(now: float, candidates: Sequence[Candidate]) -> list[Assignment]:
        return [Assignment((candidates[0].id,), Subgroup(0, 1), Reason.IN_ORDER)] if now >= 5 else []

    assert finishes(run([asked(0.0, 2)], Says(from_five_on))) == pytest.approx([7.0], abs=0.1)
    with pytest.raises(Stuck, match="1 wait"):
        run([asked(0.0, 2)], Says(lambda now, candidates: []))


@pytest.mark.parametrize(
    ("ids", "ranks", "what"),
    [
        ((), Subgroup(0, 1), "each once"),
        (("0.0", "0.0"), Subgroup(0, 1), "each once"),
        (("7.0",), Subgroup(0, 1), "each once"),
        (("0.0",), Subgroup(2, 1), "not all free"),
        (("0.0",), Subgroup(0, 2), "cannot step on 2 ranks"),
        (("0.0", "1.0"), Subgroup(0, 1), "cannot share a forward"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(ids: tuple[str, ...], ranks: Subgroup, what: str) -> None:
    policy = Says(lambda now, candidates: [Assignment(ids, ranks, Reason.IN_ORDER)])
    with pytest.raises(PlanBroken, match=what):
        run([asked(0.0, 1), asked(0.0, 1, size="32x32")], policy, num_ranks=2)


def test_a_rank_and_a_trajectory_are_given_once() -> None:
    for ids in (("0.0", "1.0"), ("0.0", "0.0")):
        pair = [Assignment((each,), Subgroup(0, 1), Reason.IN_ORDER) for each in ids]
        with pytest.raises(PlanBroken):
            run([asked(0.0, 1), asked(0.0, 1)], Says(lambda now, candidates, pair=pair: pair), num_ranks=2)


def test_what_does_not_add_up_is_found() -> None:
    right = run([asked(0.0, 2), asked(0.0, 2)], FIFO, num_ranks=2)
    first, *others = right.stints
    late = replace(right.outcomes[0], finish_s=math.inf)
    moved = replace(first, assignment=replace(first.assignment, ranks=Subgroup(1, 1)))
    assert any("sample 0.0 had 1 steps, not 2" in each for each in mistakes(replace(right, stints=tuple(others))))
    assert any("rank 1 is busy twice" in each for each in mistakes(replace(right, stints=(moved, *others))))
    assert any("stepped twice at once" in each for each in mistakes(replace(right, stints=(first, *right.stints))))
    assert any("was not finished" in each for each in mistakes(replace(right, outcomes=(late, right.outcomes[1]))))
    assert any("counted while running" in each for each in mistakes(replace(right, busy_gpu_s=5.0)))
    assert any("were stepped" in each for each in mistakes(replace(right, outcomes=right.outcomes[:1])))


def test_the_isolated_latency_is_at_the_best_degree_and_no_tighter_on_more_ranks() -> None:
    prices, one = Roofline(WAN.model, overhead_s=0.0), asked(0.0, 10, size="1280x720")
    shape = WAN.shape(one)
    alone = prices.seconds(shape, 1)
    assert alone is not None
    at_degree = {k: 10 * alone / k * 1.17 ** math.log2(k) for k in (1, 2, 4, 8)}
    assert isolated_s(one, shape, prices, 8) == pytest.approx(at_degree[8])
    assert isolated_s(one, shape, prices, 64) == pytest.approx(at_degree[8])
    assert isolated_s(one, shape, prices, 2) == pytest.approx(at_degree[2])
    assert isolated_s(replace(one, num=8), shape, prices, 64) == pytest.approx(at_degree[1])
    assert isolated_s(replace(one, num=4), shape, prices, 8) == pytest.approx(at_degree[2])
    assert isolated_s(replace(one, num=5), shape, prices, 8) == pytest.approx(at_degree[1])


@pytest.mark.parametrize(
    ("served", "profile", "size"), [("flux", "flux.1-dev", "1024x1024"), ("wan", "wan2.2-t2v-a14b", "1280x720x81")]
)
def test_prices_are_those_of_the_profiles(served: str, profile: str, size: str) -> None:
    known = yaml.safe_load((PROFILES / profile / "profile.yaml").read_text())
    steps = known["recommended"]["num_inference_steps"]
    kind = "video" if size.count("x") == 2 else "image"
    arrival = replace(asked(0.0, steps), kind=kind, size=size)
    shape = SERVED[served].shape(arrival)
    assert shape.num_tokens == known["request"]["tokens"]
    prices = Roofline(SERVED[served].model, flop_s=1e12, overhead_s=0.0)
    seconds = prices.seconds(shape, 1)
    assert seconds is not None
    assert seconds * steps == pytest.approx(known["request"]["tflop"]["denoise"], rel=2e-3)


def test_prices_grow_with_rows_and_are_none_where_a_request_cannot_be_split() -> None:
    prices = Roofline(WAN.model, overhead_s=0.25)
    one, four = (prices.seconds(Shape(1000, rows, 2), 1) for rows in (1, 4))
    assert one is not None
    assert four == pytest.approx(0.25 + 4 * (one - 0.25))
    assert prices.seconds(Shape(1000), 16) is None
    assert prices.seconds(Shape(1000), 3) is None


def test_an_image_model_refuses_videos() -> None:
    with pytest.raises(ValueError, match="at most 1 frames"):
        SERVED["flux"].shape(replace(asked(0.0, 1), kind="video", size="64x64x9"))


def test_quantiles_are_of_the_nearest_rank() -> None:
    values = [float(i) for i in range(1, 101)]
    assert [nearest_rank(values, q) for q in (0.0, 0.5, 0.95, 0.99, 1.0)] == [1.0, 50.0, 95.0, 99.0, 100.0]


def test_a_summary_says_what_the_outcomes_say() -> None:
    trace = [asked(0.0, 2, slo_scale=1.0), replace(asked(0.0, 2, slo_scale=1.0), tier="interactive")]
    found = run(trace, FIFO).summary()
    assert found["attainment_by_tier"] == {"interactive": 0.0, "standard": 1.0}
    assert (found["requests"], found["goodput_per_s"], found["longest_wait_s"]) == (2, 0.25, 2.0)
    assert (found["latency_p50_s"], found["latency_p99_s"]) == (2.0, 4.0)
