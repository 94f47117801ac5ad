"""Raydiance's own policy, the default: as many deadlines as can be met, each on as few ranks as it needs.

1. What each deadline needs (`needs.py`): the cheapest option that is fast enough, and its GPU-seconds.
2. Which deadlines are to be met (`triage.py`): as many as fit; the rest, and what has none, gets what these leave.
3. Whose turn it is: what has waited for `patience_s`; what runs and has not had its quantum; those to be met, by
   deadline, but first what would be lost if it waited for a step; and then the others, by tier, tenants below their
   share first, what runs before what waits, oldest first.
4. In that order each joins a batch of its key, where that is cheaper by a tenth and nobody is late even if all steps
   are as long as that, or is given ranks.
5. Ranks that are left (`spare.py`) halve batches or double degrees where that buys most time per GPU-second.

No rank is left idle while somebody waits who could use it, with two exceptions: `headroom`, and ranks that are
gathered. What needs more ranks than are free at once, to be on time or because no layout takes fewer, would never get
them where every rank ends its step at another moment; so the ranks of a subgroup are left alone until all of them are
free, for at most one step.

**Nothing starves.** What has waited for `patience_s` is stepped within 2 (m + 1) S seconds more, if m others had waited
longer then and no step takes longer than S seconds: whenever ranks are free the oldest of them comes first, and where
it needs several, they are gathered within S and its step takes at most S.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate

from raydiance.models.tier import TIERS, Tier
from raydiance.serve.engine.policies.base import Candidate, Plan, Prices, Ranks, Reason, Rules
from raydiance.serve.engine.policies.draft import Batch, Draft
from raydiance.serve.engine.policies.kinds import WORTHWHILE, Steps
from raydiance.serve.engine.policies.needs import Need, appraise
from raydiance.serve.engine.policies.spare import spend
from raydiance.serve.engine.policies.triage import above_share, keep

_TIER_ORDER = {tier: i for i, tier in enumerate(TIERS)}


class Slack:
    def plan(self, now: float, candidates: Sequence[Candidate], ranks: Ranks, prices: Prices, rules: Rules) -> Plan:
        draft = Draft(now, ranks, Steps(prices, ranks.size), rules)
        needs = appraise(now, candidates, draft.steps, rules, stepping=ranks.stepping, batched=True)
        above = above_share(candidates, rules)
        keep(needs, now, ranks, above)
        queue = _in_turn(now, needs, ranks, rules, above)
        passed_over_s = math.inf
        for i, (need, behind_s) in enumerate(zip(queue, _tightest_behind(queue), strict=True)):
            if not draft.open and not draft.room.num_free:
                draft.wait(*queue[i:])
                break
            batch = draft.open.get(need.kind.key)
            if batch is not None and _joins(draft, need, batch, passed_over_s, behind_s):
                continue
            if not _start(draft, need) and need.is_kept and need.slack < passed_over_s:
                passed_over_s = need.slack
        spend(draft)
        return draft.plan()


def _in_turn(
    now: float, needs: Iterable[Need], ranks: Ranks, rules: Rules, above: frozenset[tuple[Tier, str]]
) -> list[Need]:
    """Args: needs: by deadline."""
    aged, protected, kept, others = [], [], [], []
    for need in needs:
        candidate = need.candidate
        if need.is_stepping:
            continue
        if now - candidate.since >= rules.patience_s:
            need.reason = Reason.AGED
            aged.append(need)
        elif candidate.running_since is not None and now - candidate.running_since < rules.quantum_s:
            need.reason = Reason.URGENT if need.is_kept else Reason.SPARE
            protected.append(need)
        elif need.is_kept:
            need.reason = Reason.URGENT
            kept.append(need)
        else:
            need.reason = Reason.SPARE
            if need.blocked is Reason.OTHERS_FIRST and (candidate.tier, candidate.tenant) in above:
                need.blocked = Reason.FAIR_SHARE
            others.append((_place(candidate, above), candidate.since, candidate.id, need))
    aged.sort(key=lambda need: (need.candidate.since, need.candidate.id))
    protected.sort(key=lambda need: not need.is_kept)
    others.sort()
    kept = _by_urgency(kept, len(ranks.free))
    _blame_quantum(kept, len(ranks.free), sum(need.degree for need in protected if not need.is_kept))
    return [*aged, *protected, *kept, *(each[-1] for each in others)]


def _place(candidate: Candidate, above: frozenset[tuple[Tier, str]]) -> int:
    """By tier, then tenants below their share first, then what runs."""
    is_above = bool(above) and (candidate.tier, candidate.tenant) in above
    return _TIER_ORDER[candidate.tier] * 4 + is_above * 2 + (candidate.running_since is None)


def _by_urgency(kept: list[Need], num_free: int) -> list[Need]:
    """By deadline, but first what would be lost, however fast it went on, if it waited while those that would go made a
    step. Whatever can still be made up for by more ranks waits: by slack alone, long ones would displace short ones."""
    wait_s, taken = 0.0, 0
    for need in kept:
        if taken >= num_free:
            break
        wait_s, taken = max(wait_s, need.step_s), taken + need.degree
    cannot_wait = [need for need in kept if need.slack < wait_s and need.slack_at_most < wait_s]
    if not cannot_wait:
        return kept
    first = set(cannot_wait)
    return cannot_wait + [need for need in kept if need not in first]


def _blame_quantum(kept: Iterable[Need], num_free: int, num_held: int) -> None:
    """To those who would have the ranks that something else keeps for its quantum."""
    taken = 0
    for need in kept:
        if taken >= num_free or not num_held:
            break
        taken += need.degree
        if taken > num_free - num_held:
            need.blocked = Reason.QUANTUM


def _tightest_behind(queue: Sequence[Need]) -> list[float]:
    """Of each, the least slack of those after it that are to be on time."""
    backwards = [need.slack if need.is_kept else math.inf for need in reversed(queue)]
    return list(accumulate([math.inf, *backwards[:-1]], min))[::-1] if queue else []


def _joins(draft: Draft, need: Need, batch: Batch, passed_over_s: float, behind_s: float) -> bool:
    """Into a batch, where that costs less than a step alone, and neither its members nor the others get late.

    A member must be on time even if all its steps are as long: what spends its slack on a batch has none left when it
    needs ranks of its own, and those are in the middle of a step.

    Args:
        passed_over_s, behind_s: the least slack of those to be on time that got no ranks, and that come later.
    """
    smallest = need.kind.smallest
    if not smallest:
        return False
    seconds = draft.with_one_more(need, batch)
    if (
        seconds is None
        or batch.degree * (seconds - batch.seconds) > WORTHWHILE * smallest * need.kind.alone[smallest]
        or seconds > batch.pace_s
        or seconds > passed_over_s
    ):
        del draft.open[need.kind.key]  # nor for the next of its key
        return False
    if seconds > need.pace_s or seconds > behind_s:
        return False
    draft.join(need, batch, seconds)
    return True


def _start(draft: Draft, need: Need) -> bool:
    """On the ranks that it needs, else on fewer; or it waits."""
    degree = need.degree
    if not degree or not draft.room.num_free:
        draft.wait(need)
        return False
    if not draft.room.fits(degree):
        fitting = [fewer for fewer in need.kind.alone if fewer < degree and draft.room.fits(fewer)]
        fewer = fitting[-1] if fitting else 0
        is_late = not fewer or (need.is_kept and need.kind.alone[fewer] > need.slack + need.step_s)
        if is_late and (need.is_kept or need.reason is Reason.AGED) and draft.gather(degree):
            need.blocked = Reason.GATHERING
            draft.wait(need)
            return False
        degree = fewer
    if degree and draft.start(need, degree):
        return True
    draft.wait(need)
    return False
