"""What a policy sees, and what it answers: which trajectories step next, together, on which ranks. Pure.

A policy knows no clock, no torch, no Ray: the denoising loop and the simulator call it alike, with their own `now`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from raydiance.models.tier import Tier
from raydiance.parallel.mesh import Subgroup
from raydiance.serve.engine.ways import Shape


class Reason(StrEnum):
    """Why a trajectory steps or does not; `raydiance jobs why` and a metric tell it."""

    URGENT = "its deadline is the next that can be met"
    BATCHED = "shares the forward of a more urgent one, which that one can afford"
    SPARE = "ranks were left over"
    AGED = "has waited longer than the bound against starvation"
    IN_ORDER = "its turn in the order of the policy"
    OTHERS_FIRST = "waits: more urgent work takes the ranks"
    TOO_LATE = "waits: its deadline cannot be met any more, others' can"
    QUANTUM = "waits: what runs keeps its ranks for a minimum quantum"
    HEADROOM = "waits: ranks are kept free for arrivals to be expected"
    FAIR_SHARE = "waits: its tenant has had more than its share"
    MEMORY = "parked: no room in memory"
    GATHERING = "waits: it needs more ranks than are free, and what ends on them is not followed by other work"
    NO_LAYOUT = "waits: no layout takes it on these ranks"


def meaning_of(name: str) -> str:
    """Of a reason's lower-case name, as jobs keep it."""
    return Reason[name.upper()].value


@dataclass(frozen=True, slots=True)
class Candidate:
    """A trajectory that is not done. All times are seconds on the clock of `now`.

    Args:
        key: those with equal keys can share a forward.
        deadline: when its last step should have ended; inf without one.
        since: when it was last stepped, or came: `now - since` is how long it waits.
        running_since: when it was given the ranks that it has kept until now; None while it waits.
    """

    id: str
    key: Hashable
    num_tokens: int
    num_branches: int
    remaining_steps: int
    deadline: float = math.inf
    tier: Tier = "standard"
    tenant: str = ""
    since: float = 0.0
    running_since: float | None = None

    @property
    def shape(self) -> Shape:
        """Of its step, alone."""
        return Shape(self.num_tokens, 1, self.num_branches)


class Prices(Protocol):
    """Seconds of one step."""

    def seconds(self, shape: Shape, num_ranks: int) -> float | None:
        """On so many ranks, a power of two; None where no layout takes them. More ranks may cost more than fewer."""
        ...


@dataclass(frozen=True, slots=True)
class Stepping:
    """A trajectory in the middle of a step.

    Args:
        candidate: as it will be after the step; not among those that are planned for.
        until: when the step is expected to end.
    """

    candidate: Candidate
    ranks: Subgroup
    until: float


@dataclass(frozen=True, slots=True)
class Ranks:
    """Args:
    size: of the replica, a power of two.
    free: those that can be given work now; the others are in the middle of a step.
    stepping: what the others do. A policy that knows it counts what is still to be done after those steps, and knows
        when their ranks will be free; one that is not told takes them to be free soon.
    """

    size: int
    free: frozenset[int]
    stepping: tuple[Stepping, ...] = ()

    @classmethod
    def all_free(cls, size: int) -> Ranks:
        return cls(size, frozenset(range(size)))


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for every policy.

    Args:
        max_batch_size: trajectories in one forward.
        max_batch_tokens: tokens in one forward, over its trajectories; a larger one goes alone.
        quantum_s: what runs is not displaced before it has run for so long.
        patience_s: what has waited for so long is stepped before all others (ageing), at least one step.
        headroom: ranks that the tier `batch` leaves free for arrivals.
        shares: by tenant, how much of the ranks it is due, in proportion; 1 for those not named.
        served: by tenant, GPU-seconds that it has had lately; what is above its share waits while others want ranks.
    """

    max_batch_size: int = 8
    max_batch_tokens: int = 1 << 40
    quantum_s: float = 0.0
    patience_s: float = 60.0
    headroom: int = 0
    shares: Mapping[str, float] = field(default_factory=dict)
    served: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Assignment:
    """One step of a batch on some ranks.

    Args:
        reason: of the first of them; the others are `BATCHED` with it.
    """

    ids: tuple[str, ...]
    ranks: Subgroup
    reason: Reason


@dataclass(frozen=True, slots=True)
class Plan:
    """Args:
    assignments: on subgroups that are apart and free.
    waiting: why each of the others is not stepped now.
    """

    assignments: tuple[Assignment, ...]
    waiting: Mapping[str, Reason]


class Policy(Protocol):
    """The same input gives the same plan. Registered by name in `raydiance.serve.engine.policies.registry`."""

    def plan(self, now: float, candidates: Sequence[Candidate], ranks: Ranks, prices: Prices, rules: Rules) -> Plan: ...
