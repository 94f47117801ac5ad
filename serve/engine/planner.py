"""From what a denoising loop holds to its next wave of parts: a policy says who steps on how many ranks, measured costs
say in which way. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from raydiance.parallel.mesh import Mesh, Subgroup, powers_of_two
from raydiance.serve.engine.parts import Part, Wave, batch_shape, lanes
from raydiance.serve.engine.policies.base import Candidate, Policy, Ranks, Reason, Rules
from raydiance.serve.engine.ways import Costs, Shape

UNKNOWN_S_PER_TOKEN = 1e-6
"""Of a step of which nothing was measured: only proportions count then."""
HOPE = 0.8
"""A batch that was hardly measured is taken to cost so much of what its tokens say: else it would never be tried."""
TRIED = 3
"""Times after which a batch is known: one hiccup does not rule it out."""
MOST_LOOKED_AT = 8
"""Of those that wait, as company in lanes."""


@dataclass(frozen=True, slots=True)
class StepPrices:
    """`Prices` of one replica: what was measured here in the cheapest way; the rest in proportion to its tokens."""

    costs: Costs

    def seconds(self, shape: Shape, num_ranks: int) -> float | None:
        found = self.costs.best(num_ranks, shape)
        if found is None:
            return None
        way, measured_s = found
        if measured_s is not None and self.costs.times_measured(shape, way) >= (TRIED if shape.num_rows > 1 else 1):
            return measured_s
        priced = measured_s or shape.work * UNKNOWN_S_PER_TOKEN / num_ranks
        return priced * HOPE if shape.num_rows > 1 else priced


@dataclass(frozen=True)
class Planner:
    """Args:
    costs: of steps, as measured on these ranks.
    """

    policy: Policy
    costs: Costs
    rules: Rules = field(default_factory=Rules)

    @property
    def prices(self) -> StepPrices:
        return StepPrices(self.costs)

    def check(self, shape: Shape, size: int) -> None:
        """Raises ValueError where no number of the ranks has a layout for a step."""
        if not any(self.costs.best(some, shape) for some in powers_of_two(size)):
            limits = self.costs.limits
            raise ValueError(f"no layout of {size} ranks for {shape.num_tokens} tokens within {limits}")

    def next(
        self,
        now: float,
        candidates: Sequence[Candidate],
        size: int,
        shares: Mapping[str, float] | None = None,
        served: Mapping[str, float] | None = None,
    ) -> tuple[Wave, dict[str, Reason]]:
        """The next step's parts, as indices into the candidates, and of each candidate why it is stepped or waits."""
        rules = replace(self.rules, shares=shares or {}, served=served or {})
        plan = self.policy.plan(now, candidates, Ranks.all_free(size), self.prices, rules)
        index = {candidate.id: i for i, candidate in enumerate(candidates)}
        reasons = {**plan.waiting}
        for assignment in plan.assignments:
            reasons |= dict.fromkeys(assignment.ids, Reason.BATCHED) | {assignment.ids[0]: assignment.reason}
        waiting = [index[each] for each in plan.waiting][:MOST_LOOKED_AT]
        wave: Wave = []
        for assignment in plan.assignments:
            part = self.part(assignment.ranks, [index[each] for each in assignment.ids], candidates)
            along = self._along(part, candidates, waiting, now) if assignment.ranks.size > 1 else None
            if along is not None:
                part = along
                waiting.remove(other := part.batches[1][0])
                reasons[candidates[other].id] = Reason.BATCHED
            wave.append(part)
        return wave, reasons

    def part(self, ranks: Subgroup, batch: Sequence[int], candidates: Sequence[Candidate]) -> Part:
        """A batch in the cheapest way on some ranks. Raises ValueError where there is none."""
        shape = batch_shape([candidates[i].shape for i in batch])
        found = self.costs.best(ranks.size, shape)
        if found is None:
            raise ValueError(f"{ranks} are given to {shape}, which has no layout of so many")
        return Part((tuple(batch),), shape, Mesh(ranks, found[0].layout), found[0].schedule)

    def below(self, num_tokens: int) -> Planner:
        """One whose batches have fewer tokens: so many did not fit."""
        most = min(self.rules.max_batch_tokens, num_tokens - 1)
        return replace(self, rules=replace(self.rules, max_batch_tokens=most))

    def _along(self, part: Part, candidates: Sequence[Candidate], waiting: Sequence[int], now: float) -> Part | None:
        """The part with one that waits in a second lane: where that costs less than one after the other, and no
        deadline of the part's is lost by it."""
        size = part.mesh.subgroup.size
        alone = self.prices.seconds(part.shape, size)
        for other in waiting:
            its = self.prices.seconds(candidates[other].shape, size)
            if alone is None or its is None:
                continue
            found = lanes(part.shape, candidates[other].shape, alone + its, size, self.costs)
            if found is None:
                continue
            both, way, seconds = found
            if all(_ends(candidates[i], now, seconds) or not _ends(candidates[i], now, alone) for i in part.batches[0]):
                return Part((*part.batches, (other,)), both, Mesh(part.mesh.subgroup, way.layout), way.schedule)
        return None


def _ends(candidate: Candidate, now: float, step_s: float) -> bool:
    """Whether it is done by its deadline with such steps."""
    return now + candidate.remaining_steps * step_s <= candidate.deadline
