"""First come, first served, to its end, on as few ranks as take it: what a server without a scheduler does."""

from __future__ import annotations

import math
from collections.abc import Sequence

from raydiance.serve.engine.policies.base import Candidate, Plan, Prices, Ranks, Rules
from raydiance.serve.engine.policies.draft import Draft
from raydiance.serve.engine.policies.in_order import fill
from raydiance.serve.engine.policies.kinds import Steps
from raydiance.serve.engine.policies.needs import Need, appraise


class Fifo:
    """Not preemptive. What waits is never passed by what came later, so nothing starves."""

    def plan(self, now: float, candidates: Sequence[Candidate], ranks: Ranks, prices: Prices, rules: Rules) -> Plan:
        draft = Draft(now, ranks, Steps(prices, ranks.size), rules)
        needs = appraise(now, candidates, draft.steps, rules)
        for need in needs:
            need.degree = need.kind.smallest
        fill(draft, sorted(needs, key=_turn))
        return draft.plan()


def _turn(need: Need) -> tuple[float, float, str]:
    candidate = need.candidate
    started = math.inf if candidate.running_since is None else candidate.running_since
    return started, candidate.since, candidate.id
