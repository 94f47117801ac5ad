"""What may be asked of a policy, at random."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st
from tests.serve.engine.policies.tables import Table

from raydiance.models.tier import TIERS
from raydiance.parallel.mesh import Subgroup, powers_of_two
from raydiance.serve.engine.policies.base import Candidate, Ranks, Rules, Stepping

NOW = 1_700_000_000.0
KINDS = 3


@dataclass(frozen=True)
class Question:
    candidates: Sequence[Candidate]
    ranks: Ranks
    prices: Table
    rules: Rules


def table_of(rng: random.Random, size: int) -> Table:
    """Not monotone, and with degrees that no layout takes."""
    table = {
        tokens: {n: rng.uniform(0.01, 8.0) for n in powers_of_two(size) if rng.random() < 0.8}
        for tokens in range(1, KINDS + 1)
    }
    return Table(table, row=rng.choice((0.2, 0.9, 1.2)))


def candidate_of(rng: random.Random, its_id: str) -> Candidate:
    tokens, since = rng.randint(1, KINDS), NOW - rng.uniform(0.0, 100.0)
    return Candidate(
        id=its_id,
        key=tokens % 2,
        num_tokens=tokens,
        num_branches=rng.choice((1, 2)),
        remaining_steps=rng.randint(1, 30),
        deadline=rng.choice((math.inf, NOW + rng.uniform(-10.0, 100.0), NOW + rng.uniform(0.0, 400.0))),
        tier=rng.choice(TIERS),
        tenant=rng.choice(("", "a", "b")),
        since=since,
        running_since=rng.choice((None, None, NOW - rng.uniform(0.0, 5.0))),
    )


def rules_of(rng: random.Random, headroom: int | None) -> Rules:
    return Rules(
        max_batch_size=rng.randint(1, 4),
        max_batch_tokens=rng.choice((1, 4, 1 << 40)),
        quantum_s=rng.choice((0.0, 2.0)),
        patience_s=rng.choice((30.0, 1000.0)),
        headroom=rng.randint(0, 3) if headroom is None else headroom,
        served={tenant: rng.uniform(0.0, 100.0) for tenant in "ab" if rng.random() < 0.7},
        shares={tenant: rng.uniform(0.5, 4.0) for tenant in "ab" if rng.random() < 0.3},
    )


def stepping_of(rng: random.Random, busy: list[int]) -> tuple[Stepping, ...]:
    """Some of the steps on the ranks that are not free: a policy need not be told of all."""
    told = [rank for rank in busy if rng.random() < 0.7]
    return tuple(
        Stepping(candidate_of(rng, f"busy{rank}"), Subgroup(rank, 1), NOW + rng.uniform(0.0, 8.0)) for rank in told
    )


@st.composite
def questions(draw: st.DrawFn, *, all_free: bool = False, headroom: int | None = None) -> Question:
    """How many there are is hypothesis's to shrink; what they are comes from a seed, which is many times quicker."""
    size, count = draw(st.sampled_from((1, 2, 4, 8, 16))), draw(st.integers(0, 12))
    free = frozenset(range(size)) if all_free else draw(st.frozensets(st.integers(0, size - 1)))
    rng = random.Random(draw(st.integers(0, 1 << 40)))
    busy = [rank for rank in range(size) if rank not in free]
    return Question(
        [candidate_of(rng, f"t{i}") for i in range(count)],
        Ranks(size, free, stepping_of(rng, busy)),
        table_of(rng, size),
        rules_of(rng, headroom),
    )
