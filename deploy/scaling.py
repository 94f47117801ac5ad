"""How many replicas a stage should have: from the work that is here, what is forecast, and what it may cost. Pure.

For what comes as many as its level keeps busy; beside them as many as do what is here by its deadlines:

    wanted = level / utilization + max over deadlines D of the least n with  sum over i <= n of (D - ready_i) >= due(D)

`ready_i` is 0 for a replica that serves, what remains of its start for one that was asked for, and a whole start for
any other; due(D) is the work that should be done by D. A new replica cannot help what has to begin before it serves: of
such work due(D) has what those that are there can do by D. The rest is late whatever is decided, and due `drain_s`
after a start, as is all that is late already. A sample is worth one replica at most.

To keep a replica for as long as a start takes costs what starting it anew does. So one goes when for so long it was
asked for neither by that formula nor by its second term with all `ready_i` = 0, which is how many the work that is here
would have kept busy.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import accumulate
from statistics import median

from raydiance.deploy.forecast import Arrivals, observed
from raydiance.deploy.hours import Hours, spares_at

STARTS_KEPT = 5
QUIET = 1e-3
"""Replicas: a forecast below it needs none."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Of one stage. See `autoscaling` in docs/operations.md.

    Args:
        start_s: taken for the time until a replica serves before the first has been measured.
        cost_per_hour: of a replica; max_spend_per_hour: of this stage and all others together.
    """

    min_replicas: int = 1
    max_replicas: int = 1
    start_s: float = 60.0
    cost_per_hour: float = 0.0
    max_spend_per_hour: float | None = None
    spares: int = 0
    spare_percent: float = 0.0
    schedule: tuple[Hours, ...] = ()
    timezone: str = "UTC"
    utilization: float = 1.0
    drain_s: float = 30.0
    batch_drain_s: float = 600.0
    window_s: float = 300.0
    hysteresis: float = 0.1
    cooldown_s: float = 60.0
    idle_s: float = 300.0
    stale_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Work:
    """Samples that wait or run. Args: slack_s: until they should be done, inf without a deadline; seconds: of a replica
    that they still take together."""

    slack_s: float
    seconds: float
    count: int = 1
    tier: str = "standard"


@dataclass(frozen=True, slots=True)
class Signals:
    """Args:
    num_live: replicas that serve; target: that were asked for last.
    arrived_s: seconds of a replica that have ever come.
    age_s: of all this.
    is_waking: a replica is needed to learn what requests take, whatever the work says.
    spent_elsewhere: an hour, by the other stages that share the cap.
    """

    num_live: int
    target: int
    work: Sequence[Work] = ()
    arrived_s: float = 0.0
    age_s: float = 0.0
    is_waking: bool = False
    spent_elsewhere: float = 0.0


@dataclass(frozen=True, slots=True)
class State:
    """What is remembered between decisions; times are those of `now`.

    Args:
        watched_since: without a gap in the signals.
        busy_at: when there was work last.
        highs: counts that were needed during the cool-down, and when: each is above those after it.
        asked: when each replica that does not serve yet was asked for.
        starts_s: what the last ones took until they served.
        num_live: as it was.
    """

    arrivals: Arrivals = field(default_factory=Arrivals)
    watched_since: float | None = None
    busy_at: float = 0.0
    highs: tuple[tuple[float, int], ...] = ()
    asked: tuple[float, ...] = ()
    starts_s: tuple[float, ...] = ()
    num_live: int = 0

    def start_s(self, rules: Rules) -> float:
        """Until a replica serves: as measured, else as configured."""
        return median(self.starts_s) if self.starts_s else rules.start_s

    def waiting_s(self, now: float) -> float:
        """For how long the first replica that does not serve yet has been asked for."""
        return now - self.asked[0] if self.asked else 0.0


@dataclass(frozen=True, slots=True)
class Reason:
    """Args: word: one of a few, for a metric's tag; text: with its numbers."""

    word: str
    text: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Args: wanted: replicas before rounding, spares, limits and cool-down."""

    replicas: int
    wanted: float
    forecast: float
    start_s: float
    reasons: tuple[Reason, ...] = ()

    def __str__(self) -> str:
        return "; ".join(reason.text for reason in self.reasons)


def decide(state: State, signals: Signals, rules: Rules, now: float) -> tuple[State, Decision]:
    """Args: now: in Unix seconds, as the schedule of spares needs it; it never goes back."""
    state, is_busy = _seen(state, signals, rules, now)
    start_s = state.start_s(rules)
    rate = state.arrivals.level
    if signals.age_s > rules.stale_s:
        held = Reason("stale", f"signals are {signals.age_s:.1f} s old: {signals.target} held")
        return state, Decision(signals.target, signals.target, rate, start_s, (held,))
    idle_s = now - state.busy_at
    is_asleep = rules.min_replicas == 0 and not is_busy and (signals.target == 0 or idle_s >= rules.idle_s)
    if is_asleep:
        wanted, needed, enough = 0.0, 0, 0
        reasons = [Reason("idle", f"nothing to do for {idle_s:.0f} s")]
    else:
        ready_s = [0.0] * min(signals.num_live, signals.target)
        ready_s += [max(at + start_s - now, 0.0) for at in state.asked]
        wanted = rate / rules.utilization + replicas_for(signals.work, ready_s, start_s, rules)
        kept = max(wanted, replicas_for(signals.work, (), 0.0, rules))
        needed = max(math.ceil(wanted - rules.hysteresis * (1 + wanted)), 1)
        enough = max(math.ceil(kept + rules.hysteresis * (1 + kept)), 1)
        reasons = _reasons(signals, rate)
    spares = _spares(needed, rules, now)
    if spares:
        reasons.append(Reason("spares", f"{spares} spare"))
    state, chosen = _settled(state, signals, rules, now, needed + spares, enough + spares, is_asleep, reasons)
    chosen = _bounded(chosen, signals, rules, reasons)
    missing = max(chosen - signals.num_live, 0)
    asked = (*state.asked, *[now] * (missing - len(state.asked)))[:missing]
    return replace(state, asked=asked), Decision(chosen, wanted, rate, start_s, tuple(reasons))


def _seen(state: State, signals: Signals, rules: Rules, now: float) -> tuple[State, bool]:
    """What is to be remembered of the signals whatever is decided, and whether there is anything to do."""
    live = signals.num_live
    if state.watched_since is None:
        asked = (now,) * max(signals.target - live, 0)
        state = replace(state, watched_since=now, busy_at=now, asked=asked, num_live=live)
    served = state.asked[: max(live - state.num_live, 0)]
    starts_s = (*state.starts_s, *(now - at for at in served))[-STARTS_KEPT:]
    state = replace(state, num_live=live, asked=state.asked[len(served) :], starts_s=starts_s)
    if signals.age_s > rules.stale_s:  # what came meanwhile came at an unknown time
        return replace(state, watched_since=now, busy_at=now, arrivals=replace(state.arrivals, at=None)), False
    has_come = state.arrivals.at is not None and signals.arrived_s > state.arrivals.total_s
    is_busy = bool(signals.work) or signals.is_waking or has_come
    arrivals = observed(state.arrivals, now, signals.arrived_s, rules.window_s)
    return replace(state, arrivals=arrivals, busy_at=now if is_busy else state.busy_at), is_busy


def _reasons(signals: Signals, rate: float) -> list[Reason]:
    reasons = []
    if rate >= QUIET:
        reasons.append(Reason("forecast", f"{rate:.2f} s of work a second forecast"))
    if signals.work:
        seconds, count = math.fsum(each.seconds for each in signals.work), sum(each.count for each in signals.work)
        reasons.append(Reason("work", f"{seconds:.1f} s of work in {count} samples"))
    if signals.is_waking:
        reasons.append(Reason("waking", "one to learn what requests take"))
    return reasons or [Reason("quiet", "nothing is here, and nothing is forecast")]


def replicas_for(work: Sequence[Work], ready_s: Sequence[float], start_s: float, rules: Rules) -> float:
    """The least that do the work by its deadlines: the second term of the formula.

    Args: ready_s: until each replica serves that there is or that was asked for, ascending, at most start_s.
    """
    ready_sum, late_until_s = [0.0, *accumulate(ready_s)], start_s + rules.drain_s
    dues = [(_until_s(each, start_s, rules), i, each) for i, each in enumerate(work)]
    heapify(dues)
    due_s, count, most = 0.0, 0, 0.0
    while dues:
        until_s, i, each = heappop(dues)
        before = bisect_left(ready_s, until_s)
        room_s = before * until_s - ready_sum[before]
        count += each.count
        due_s += each.seconds
        latest_s = until_s - each.seconds / max(each.count, 1)
        if latest_s < start_s and until_s < late_until_s and due_s > room_s:
            late_s = min(due_s - room_s, each.seconds)
            due_s -= late_s
            heappush(dues, (late_until_s, i, replace(each, seconds=late_s, count=0)))
        busy = bisect_left(range(before), due_s, key=lambda n: (n + 1) * until_s - ready_sum[n + 1])
        left_s = due_s - (busy * until_s - ready_sum[busy])
        each_s = until_s - (ready_s[busy] if busy < before else start_s)
        most = max(most, min(busy + (left_s / each_s if each_s > 0 else 0.0), count))
    return most


def _until_s(work: Work, start_s: float, rules: Rules) -> float:
    """Seconds until it should be done, or is to be done where that cannot be any more."""
    if math.isinf(work.slack_s):
        return start_s + rules.batch_drain_s
    return work.slack_s if work.seconds <= work.slack_s * work.count else start_s + rules.drain_s


def _spares(needed: int, rules: Rules, now: float) -> int:
    percent = math.ceil(rules.spare_percent / 100 * needed)
    return max(rules.spares, percent, spares_at(rules.schedule, now, rules.timezone))


def _settled(
    state: State,
    signals: Signals,
    rules: Rules,
    now: float,
    needed: int,
    enough: int,
    is_asleep: bool,
    reasons: list[Reason],
) -> tuple[State, int]:
    """More at once; fewer where fewer would have been enough all through the cool-down.

    It is never shorter than a start: to keep a replica for that long costs what it costs to start it anew.
    """
    cooldown_s = max(rules.cooldown_s, state.start_s(rules))
    highs = [(at, n) for at, n in state.highs if n > enough and at > now - cooldown_s]
    highs.append((now, enough))
    state = replace(state, highs=tuple(highs))
    if needed > signals.target or is_asleep:
        return state, needed
    if enough >= signals.target:
        return state, signals.target
    watched_s = now - (now if state.watched_since is None else state.watched_since)
    highest = highs[0][1] if watched_s >= cooldown_s else signals.target
    if highest >= signals.target:
        reasons.append(Reason("cool-down", f"{enough} would be enough now, not all of the last {cooldown_s:.0f} s"))
    return state, min(highest, signals.target)


def _bounded(chosen: int, signals: Signals, rules: Rules, reasons: list[Reason]) -> int:
    limit = rules.max_replicas
    if chosen > limit:
        reasons.append(Reason("maximum", f"{chosen} wanted, max_replicas={limit}"))
    if rules.max_spend_per_hour is not None and rules.cost_per_hour > 0:
        left = max(rules.max_spend_per_hour - signals.spent_elsewhere, 0.0)
        paid = math.floor(min(left / rules.cost_per_hour + 1e-9, limit))
        if min(chosen, limit) > paid:
            cap = f"max_spend_per_hour={rules.max_spend_per_hour:g}, {signals.spent_elsewhere:g} spent elsewhere"
            reasons.append(Reason("spend", f"{min(chosen, limit)} wanted, {cap}"))
        limit = min(limit, paid)
    if min(chosen, limit) < rules.min_replicas:
        reasons.append(Reason("minimum", f"min_replicas={rules.min_replicas}"))
    return max(min(chosen, limit), rules.min_replicas)
