"""What may be asked of a policy, at random."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from tests.serve.engine.policies.tables import Table

from raydiance.parallel.mesh import powers_of_two
from raydiance.serve.engine.policies.base import TIERS, Candidate, Ranks, Rules

NOW = 1_700_000_000.0
KINDS = 3


@dataclass(frozen=True)
class Question:
    candidates: Sequence[Candidate]
    ranks: Ranks
    prices: Table
    rules: Rules


@st.composite
def tables(draw: st.DrawFn, size: int, *, always_on_one: bool) -> Table:
    """Not monotone, and with degrees that no layout takes."""
    price = st.floats(0.01, 8.0)
    maybe = st.none() | price
    table = {}
    for tokens in range(1, KINDS + 1):
        prices = {n: draw(price if n == 1 and always_on_one else maybe) for n in powers_of_two(size)}
        table[tokens] = {n: seconds for n, seconds in prices.items() if seconds is not None}
    return Table(table, row=draw(st.sampled_from((0.2, 0.9, 1.2))))


@st.composite
def candidates(draw: st.DrawFn, most: int = 12) -> list[Candidate]:
    found = []
    for i in range(draw(st.integers(0, most))):
        tokens = draw(st.integers(1, KINDS))
        since = NOW - draw(st.floats(0.0, 100.0))
        found.append(
            Candidate(
                id=f"t{i}",
                key=tokens % 2,
                num_tokens=tokens,
                num_branches=draw(st.sampled_from((1, 2))),
                remaining_steps=draw(st.integers(1, 30)),
                deadline=draw(st.just(math.inf) | st.floats(-10.0, 100.0).map(lambda s: NOW + s)),
                tier=draw(st.sampled_from(TIERS)),
                tenant=draw(st.sampled_from(("", "a", "b"))),
                since=since,
                running_since=draw(st.none() | st.floats(0.0, 5.0).map(lambda s, since=since: max(since, NOW) - s)),  # type: ignore[misc]
            )
        )
    return found


@st.composite
def rules(draw: st.DrawFn, **fixed: Any) -> Rules:
    drawn = {
        "max_batch_size": draw(st.integers(1, 4)),
        "max_batch_tokens": draw(st.sampled_from((1, 4, 1 << 40))),
        "quantum_s": draw(st.sampled_from((0.0, 2.0))),
        "patience_s": draw(st.sampled_from((30.0, 1000.0))),
        "headroom": draw(st.integers(0, 3)),
        "served": draw(st.dictionaries(st.sampled_from(("a", "b")), st.floats(0.0, 100.0))),
        "shares": draw(st.dictionaries(st.sampled_from(("a", "b")), st.floats(0.5, 4.0))),
    }
    return Rules(**(drawn | fixed))


@st.composite
def questions(draw: st.DrawFn, *, always_on_one: bool = False, all_free: bool = False, **fixed: Any) -> Question:
    size = draw(st.sampled_from((1, 2, 4, 8, 16)))
    free = frozenset(range(size)) if all_free else draw(st.frozensets(st.integers(0, size - 1)))
    return Question(
        draw(candidates()),
        Ranks(size, free),
        draw(tables(size, always_on_one=always_on_one)),
        draw(rules(**fixed)),
    )
