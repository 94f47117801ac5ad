"""What a simulated run comes to: by request, and as a whole."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trace_arrival import Arrival

from raydiance.serve.engine.policies.base import Assignment


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one request; over all its samples where it has several.

    Args:
        finish_s: when its last sample had its last step; inf where the run was given up before.
        deadline_s: on the same clock.
        gpu_s: ranks times seconds; a batch's are shared equally.
        preemptions: how often a sample that had begun, and had just been stepped, had to wait.
        degree_changes: how often a sample went on over more or fewer ranks than before.
        longest_wait_s: of a sample between coming, or a step, and the next one.
    """

    arrival: Arrival
    finish_s: float
    deadline_s: float
    gpu_s: float
    preemptions: int
    degree_changes: int
    longest_wait_s: float

    @property
    def latency_s(self) -> float:
        return self.finish_s - self.arrival.at_s

    @property
    def met(self) -> bool:
        return self.finish_s <= self.deadline_s


@dataclass(frozen=True, slots=True)
class Stint:
    """Steps of one batch, one after the other, that were planned at once."""

    start_s: float
    end_s: float
    num_steps: int
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Run:
    """Args:
    outcomes: in the order of the trace.
    window_s: over which the requests came; goodput is per second of it.
    stints: all that was computed, where it was asked to be kept.
    gave_up: it was ended early, with too many deadlines missed.
    """

    num_ranks: int
    window_s: float
    outcomes: tuple[Outcome, ...]
    busy_gpu_s: float
    num_plans: int
    stints: tuple[Stint, ...] = ()
    gave_up: bool = False

    @property
    def attainment(self) -> float:
        """Share of the requests that met their deadline."""
        return sum(o.met for o in self.outcomes) / len(self.outcomes)

    @property
    def attainment_by_tier(self) -> dict[str, float]:
        tiers = sorted({o.arrival.tier for o in self.outcomes})
        met = {tier: [o.met for o in self.outcomes if o.arrival.tier == tier] for tier in tiers}
        return {tier: sum(of_tier) / len(of_tier) for tier, of_tier in met.items()}

    @property
    def goodput_per_s(self) -> float:
        """Requests that met their deadline, per second."""
        return sum(o.met for o in self.outcomes) / self.window_s

    @property
    def utilisation(self) -> float:
        """Share of the ranks' time that was computed in, until the last request was done."""
        return self.busy_gpu_s / (self.num_ranks * max(o.finish_s for o in self.outcomes))

    def latency_s(self, quantile: float) -> float:
        return nearest_rank([o.latency_s for o in self.outcomes], quantile)

    @property
    def longest_wait_s(self) -> float:
        return max(o.longest_wait_s for o in self.outcomes)

    def summary(self) -> dict[str, Any]:
        return {
            "requests": len(self.outcomes),
            "ranks": self.num_ranks,
            "window_s": self.window_s,
            "attainment": self.attainment,
            "attainment_by_tier": self.attainment_by_tier,
            "goodput_per_s": self.goodput_per_s,
            "utilisation": self.utilisation,
            "latency_p50_s": self.latency_s(0.5),
            "latency_p95_s": self.latency_s(0.95),
            "latency_p99_s": self.latency_s(0.99),
            "longest_wait_s": self.longest_wait_s,
            "gpu_s": self.busy_gpu_s,
            "preemptions": sum(o.preemptions for o in self.outcomes),
            "degree_changes": sum(o.degree_changes for o in self.outcomes),
            "plans": self.num_plans,
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row a request."""
        return [asdict(o) | {"latency_s": o.latency_s, "met": o.met} for o in self.outcomes]


def nearest_rank(values: Sequence[float], quantile: float) -> float:
    """The smallest value that so large a share of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(quantile * len(values)) - 1)]


def mistakes(run: Run) -> list[str]:
    """What cannot be: of a run whose stints were kept, and that was not given up; empty for a right one.

    Every sample has all its steps, in one stint at a time, none before its request came, the last when it is said to
    be done; a rank is in one stint at a time; GPU-seconds add up.
    """
    found = [f"request {i} was not finished" for i, o in enumerate(run.outcomes) if math.isinf(o.finish_s)]
    by_rank: dict[int, list[Stint]] = {}
    by_sample: dict[str, list[Stint]] = {}
    for stint in run.stints:
        for rank in stint.assignment.ranks.ranks:
            by_rank.setdefault(rank, []).append(stint)
        for sample in stint.assignment.ids:
            by_sample.setdefault(sample, []).append(stint)
    found += [f"rank {rank} is busy twice" for rank, stints in by_rank.items() if _overlap(stints)]
    found += [f"sample {sample} is stepped twice at once" for sample, stints in by_sample.items() if _overlap(stints)]
    if not set(by_rank) <= set(range(run.num_ranks)):
        found.append(f"there are ranks 0 to {run.num_ranks - 1}, used were {sorted(by_rank)}")
    for i, outcome in enumerate(run.outcomes):
        found += _mistakes_of(i, outcome, by_sample)
    samples = sum(o.arrival.num for o in run.outcomes)
    if len(by_sample) != samples:
        found.append(f"{samples} samples came, {len(by_sample)} were stepped")
    spent = sum((stint.end_s - stint.start_s) * stint.assignment.ranks.size for stint in run.stints)
    given = sum(o.gpu_s for o in run.outcomes)
    for name, gpu_s in (("counted while running", run.busy_gpu_s), ("given to requests", given)):
        if not math.isclose(gpu_s, spent, rel_tol=1e-6):
            found.append(f"{spent} GPU-seconds were spent, {gpu_s} {name}")
    return found


def sample_id(request: int, sample: int) -> str:
    return f"{request}.{sample}"


def _mistakes_of(i: int, outcome: Outcome, by_sample: dict[str, list[Stint]]) -> list[str]:
    found, ends = [], []
    for sample in range(outcome.arrival.num):
        stints = by_sample.get(sample_id(i, sample), [])
        steps = sum(stint.num_steps for stint in stints)
        if steps != outcome.arrival.steps:
            found.append(f"sample {i}.{sample} had {steps} steps, not {outcome.arrival.steps}")
        if stints and min(stint.start_s for stint in stints) < outcome.arrival.at_s:
            found.append(f"sample {i}.{sample} was stepped before it came")
        ends += [stint.end_s for stint in stints]
    if ends and max(ends) != outcome.finish_s:
        found.append(f"request {i} is said to be done at {outcome.finish_s}, its last step ended at {max(ends)}")
    return found


def _overlap(stints: list[Stint]) -> bool:
    in_order = sorted(stints, key=lambda stint: stint.start_s)
    return any(b.start_s < a.end_s for a, b in itertools.pairwise(in_order))
