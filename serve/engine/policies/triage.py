"""Which deadlines are to be met: as many as can be. Pure.

Moore and Hodgson's rule (Management Science 15, 1968) for several ranks. Deadlines are taken in their order, and the
GPU-seconds that each needs are added up; where they are more than all ranks have until that deadline, the one that
costs most is given up. On one rank, with everything there from the beginning, no other choice meets more. What is given
up is decided anew in every plan: it comes back as soon as there is room for it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from raydiance.models.tier import Tier
from raydiance.serve.engine.policies.base import Candidate, Ranks, Reason, Rules
from raydiance.serve.engine.policies.needs import TOLERANCE_S, Need


def keep(needs: Iterable[Need], now: float, ranks: Ranks, above: frozenset[tuple[Tier, str]]) -> None:
    """Marks the needs whose deadlines are to be met, and says why the others wait.

    Args:
        needs: by deadline.
        above: tiers and tenants that have had more than their share: theirs are given up before the others'.
    """
    demand = sum(max(until - now, 0.0) for until in ends(ranks).values())
    costliest: list[tuple[bool, float, str, Need]] = []
    for need in needs:
        if not need.cost:
            continue
        candidate = need.candidate
        need.is_kept = True
        demand += need.cost
        is_above = bool(above) and (candidate.tier, candidate.tenant) in above
        heapq.heappush(costliest, (not is_above, -need.cost, candidate.id, need))
        most = ranks.size * (candidate.deadline - now + TOLERANCE_S)
        while demand > most and costliest:
            is_within, cost, _, given_up = heapq.heappop(costliest)
            given_up.is_kept = False
            given_up.blocked = Reason.TOO_LATE if is_within else Reason.FAIR_SHARE
            demand += cost


def ends(ranks: Ranks) -> dict[int, float]:
    """By rank in the middle of a step that was told: when it ends."""
    return {rank: stepping.until for stepping in ranks.stepping for rank in stepping.ranks.ranks}


def above_share(candidates: Iterable[Candidate], rules: Rules) -> frozenset[tuple[Tier, str]]:
    """Tiers and tenants that have had more than their share of what the tenants that want ranks in that tier have had.

    Where there is one, there is another in the same tier that has had less.
    """
    if not any(rules.served.values()):
        return frozenset()
    tenants: dict[Tier, set[str]] = {}
    for tier, tenant in {(candidate.tier, candidate.tenant) for candidate in candidates}:
        tenants.setdefault(tier, set()).add(tenant)
    found = set()
    for tier, present in tenants.items():
        shares = {tenant: rules.shares.get(tenant, 1.0) for tenant in present}
        served = {tenant: rules.served.get(tenant, 0.0) for tenant in present}
        level = math.fsum(served.values()) / math.fsum(shares.values())
        found |= {(tier, tenant) for tenant in present if served[tenant] > level * shares[tenant] * (1 + 1e-9)}
    return frozenset(found)
