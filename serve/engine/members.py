"""What a denoising loop holds: a trajectory on the ranks, who listens to it, and what was decided of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from raydiance.serve.engine.orders import Outcome, Standing, Start, Wish
from raydiance.serve.engine.policies.base import Candidate, Reason
from raydiance.serve.engine.terms import Terms


@dataclass(frozen=True, slots=True)
class Update:
    """After every step: how far it is and what was wished for; or what it raised when it began or was stepped alone.

    Args:
        busy_s: that its steps have taken in this loop: its share of the batches'.
        gpu_seconds: that, times their ranks.
        decisions: how often it was stepped, or waited while others were, by reason.
    """

    step_index: int
    num_steps: int
    outcome: Outcome | None
    error: Exception | None = None
    busy_s: float = 0.0
    gpu_seconds: float = 0.0
    decisions: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        return self.outcome is not None and self.outcome.result is not None


class Listener(Protocol):
    """Whoever submitted a trajectory; called in the loop's thread."""

    def wish(self, step_index: int) -> Wish:
        """What it wants to see after the step that ends at `step_index`."""
        ...

    def __call__(self, update: Update) -> None: ...


@dataclass(slots=True)
class Member:
    """Args:
    standing: None until it has begun.
    since, running_since: as a `Candidate` has them.
    is_paused: it stays on the ranks and is not stepped.
    busy_s, gpu_seconds: as an `Update` has them, since the last `begin_lease`.
    """

    start: Start
    listener: Listener
    since: float
    standing: Standing | None = None
    running_since: float | None = None
    is_paused: bool = False
    busy_s: float = 0.0
    gpu_seconds: float = 0.0
    decisions: Counter[Reason] = field(default_factory=Counter)

    @property
    def stands(self) -> Standing:
        """Where it is, once it has begun."""
        if self.standing is None:
            raise ValueError(f"trajectory {self.start.id} has not begun")
        return self.standing

    @property
    def candidate(self) -> Candidate:
        stands, terms = self.stands, self.start.terms
        return Candidate(
            id=self.start.id,
            key=stands.key,
            num_tokens=stands.num_tokens,
            num_branches=stands.num_branches,
            remaining_steps=stands.num_steps - stands.step_index,
            deadline=terms.deadline,
            tier=terms.tier,
            tenant=terms.tenant,
            since=self.since,
            running_since=self.running_since,
        )

    def begin_lease(self, terms: Terms, listener: Listener) -> None:
        """Somebody else listens, and pays."""
        self.start = replace(self.start, terms=terms)
        self.listener, self.is_paused = listener, False
        self.busy_s, self.gpu_seconds, self.decisions = 0.0, 0.0, Counter()

    def update(self, outcome: Outcome | None, error: Exception | None = None) -> Update:
        num_steps = self.start.spec.num_inference_steps
        index = self.standing.step_index if self.standing is not None else 0
        at = index if outcome is None else outcome.step_index
        decisions = {reason.name.lower(): count for reason, count in self.decisions.items()}
        return Update(at, num_steps, outcome, error, self.busy_s, self.gpu_seconds, decisions)
