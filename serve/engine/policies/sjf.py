"""Shortest job first, to its end: what is running goes on, then what has the fewest seconds left."""

from __future__ import annotations

from collections.abc import Sequence

from raydiance.serve.engine.policies.base import Candidate, Plan, Prices, Ranks, Rules
from raydiance.serve.engine.policies.draft import Draft
from raydiance.serve.engine.policies.in_order import fill, is_aged
from raydiance.serve.engine.policies.kinds import Steps
from raydiance.serve.engine.policies.needs import Need, appraise


class ShortestJobFirst:
    """Not preemptive, and knows no deadlines. What has waited for `patience_s` is next when something has ended."""

    def plan(self, now: float, candidates: Sequence[Candidate], ranks: Ranks, prices: Prices, rules: Rules) -> Plan:
        draft = Draft(now, ranks, Steps(prices, ranks.size), rules)
        needs = appraise(now, candidates, draft.steps, rules)

        def turn(need: Need) -> tuple[bool, bool, float, str]:
            candidate, kind = need.candidate, need.kind
            need.degree = kind.smallest
            left_s = candidate.remaining_steps * kind.alone[need.degree] if need.degree else 0.0
            aged = is_aged(need, now, rules.patience_s)
            return candidate.running_since is None, not aged, candidate.since if aged else left_s, candidate.id

        fill(draft, sorted(needs, key=turn))
        return draft.plan()
