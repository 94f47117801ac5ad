"""A baseline in the manner of TetriServe (Lu et al., arXiv:2510.01565), written from the paper.

Time goes in rounds of a fixed length. At the beginning of one, every request has the smallest degree that meets its
deadline; which of those that would be lost if they waited for a round get their ranks is decided by dynamic
programming over the ranks, so that most survive. What survives without comes next, by deadline; then, best effort, what
is lost or has no deadline. Ranks that are left make others faster. A step that would not end in the round is not begun,
unless all ranks are free: so that the next round has them all.

Ours beside the paper's: ranks that something leaves within a round are given out again at once, if a step fits in;
equal shapes are batched where none of them is late by it; what has waited for `patience_s` comes first, as everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from raydiance.serve.engine.policies.base import Candidate, Plan, Prices, Ranks, Reason, Rules
from raydiance.serve.engine.policies.draft import Draft
from raydiance.serve.engine.policies.in_order import is_aged
from raydiance.serve.engine.policies.kinds import WORTHWHILE, Steps
from raydiance.serve.engine.policies.needs import Need, appraise
from raydiance.serve.engine.policies.spare import spend

ROUND_S = 1.0
_A_SURVIVOR = 1e9
"""Is worth more than any number of GPU-seconds."""


@dataclass(frozen=True)
class TetriServe:
    """Args: round_s: of the order of five steps, says the paper."""

    round_s: float = ROUND_S

    def plan(self, now: float, candidates: Sequence[Candidate], ranks: Ranks, prices: Prices, rules: Rules) -> Plan:
        draft = Draft(now, ranks, Steps(prices, ranks.size), rules)
        needs = appraise(now, candidates, draft.steps, rules)
        is_new = len(ranks.free) == ranks.size
        ends_s = (math.floor(now / self.round_s) + 1) * self.round_s
        for need in _in_turn(needs, now, ends_s, draft, is_new):
            if not need.degree or not _start(draft, need, math.inf if is_new else ends_s):
                _join(draft, need)
        if is_new:
            spend(draft)
        return draft.plan()


def _in_turn(needs: Sequence[Need], now: float, ends_s: float, draft: Draft, is_new: bool) -> list[Need]:
    aged, running, urgent, others, late = [], [], [], [], []
    for need in needs:
        need.is_kept = -math.inf < need.slack < math.inf
        if is_aged(need, now, draft.rules.patience_s):
            aged.append(need)
        elif not is_new and need.candidate.running_since is not None:
            running.append(need)
        elif not need.is_kept:
            late.append(need)
        elif _survives(need, ends_s):
            others.append(need)
        else:
            urgent.append(need)
    aged.sort(key=_by_age)
    late.sort(key=_by_age)
    packed = _packed(urgent, draft.room.num_free)
    rest = set(urgent).difference(packed)
    by_deadline = [sorted(group, key=_by_deadline) for group in (running, packed, others, rest)]
    return aged + by_deadline[0] + by_deadline[1] + by_deadline[2] + by_deadline[3] + late


def _by_age(need: Need) -> tuple[float, str]:
    return need.candidate.since, need.candidate.id


def _by_deadline(need: Need) -> tuple[float, str]:
    return need.candidate.deadline, need.candidate.id


def _survives(need: Need, ends_s: float) -> bool:
    """Whether it can still be on time if it is not stepped in this round."""
    return ends_s + need.candidate.remaining_steps * min(need.kind.alone.values()) <= need.candidate.deadline


def _packed(urgent: Sequence[Need], num_free: int) -> list[Need]:
    """As many as there are ranks for, at the fewest GPU-seconds: the 0-1 knapsack."""
    best = [0.0] * (num_free + 1)
    taken: list[bytearray] = []
    in_order = sorted(urgent, key=_by_deadline)
    for need in in_order:
        worth, degree = _A_SURVIVOR - need.cost, need.degree
        marks = bytearray(num_free + 1)
        for ranks in range(num_free, degree - 1, -1):
            with_it = best[ranks - degree] + worth
            if with_it > best[ranks]:
                best[ranks], marks[ranks] = with_it, 1
        taken.append(marks)
    packed, left = [], num_free
    for need, marks in zip(reversed(in_order), reversed(taken), strict=True):
        if marks[left]:
            packed.append(need)
            left -= need.degree
    return packed


def _start(draft: Draft, need: Need, ends_s: float) -> bool:
    need.reason = need.reason if need.reason is Reason.AGED else Reason.URGENT if need.is_kept else Reason.SPARE
    in_time = [d for d, seconds in need.kind.alone.items() if d <= need.degree and draft.now + seconds <= ends_s]
    fitting = [degree for degree in in_time if draft.room.fits(degree)]
    return bool(fitting) and draft.start(need, fitting[-1])


def _join(draft: Draft, need: Need) -> None:
    batch = draft.open.get(need.kind.key)
    seconds = None if batch is None or not need.degree else draft.with_one_more(need, batch)
    if (
        batch is None
        or seconds is None
        or batch.degree * (seconds - batch.seconds)
        > WORTHWHILE * need.kind.smallest * need.kind.alone[need.kind.smallest]
        or seconds > min(batch.pace_s, need.pace_s)
    ):
        draft.wait(need)
    else:
        draft.join(need, batch, seconds)
