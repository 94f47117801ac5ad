"""Earliest deadline first, at every step: on as few ranks as meet the deadline, whether or not others' can be met."""

from __future__ import annotations

from collections.abc import Sequence

from raydiance.serve.engine.policies.base import Candidate, Plan, Prices, Ranks, Rules
from raydiance.serve.engine.policies.draft import Draft
from raydiance.serve.engine.policies.in_order import fill, is_aged
from raydiance.serve.engine.policies.kinds import Steps
from raydiance.serve.engine.policies.needs import Need, appraise


class EarliestDeadlineFirst:
    """Preemptive. What has waited for `patience_s` goes before all others, oldest first."""

    def plan(self, now: float, candidates: Sequence[Candidate], ranks: Ranks, prices: Prices, rules: Rules) -> Plan:
        draft = Draft(now, ranks, Steps(prices, ranks.size), rules)
        needs = appraise(now, candidates, draft.steps, rules)

        def turn(need: Need) -> tuple[bool, float, float, str]:
            candidate = need.candidate
            aged = is_aged(need, now, rules.patience_s)
            return not aged, candidate.since if aged else candidate.deadline, candidate.since, candidate.id

        fill(draft, sorted(needs, key=turn))
        return draft.plan()
