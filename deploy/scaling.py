"""How many replicas a stage should have: from the work that is here, what is forecast, and what it may cost. Pure.

A new replica serves `start_s` seconds after it is asked for. Until then those that live go on with the work; what will
be left then has to be done by its deadline, beside what comes:

    wanted = forecast / utilization + max over deadlines D of (work due by D + (forecast - live) * start) / (D - start)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from raydiance.deploy.forecast import Arrivals, forecast, observed
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
    utilization: float = 0.8
    drain_s: float = 10.0
    batch_drain_s: float = 600.0
    window_s: float = 60.0
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
    rate = forecast(state.arrivals, start_s)
    if signals.age_s > rules.stale_s:
        held = Reason("stale", f"signals are {signals.age_s:.1f} s old: {signals.target} held")
        return state, Decision(signals.target, signals.target, rate, start_s, (held,))
    idle_s = now - state.busy_at
    is_asleep = rules.min_replicas == 0 and not is_busy and (signals.target == 0 or idle_s >= rules.idle_s)
    if is_asleep:
        wanted, needed, enough = 0.0, 0, 0
        reasons = [Reason("idle", f"nothing to do for {idle_s:.0f} s")]
    else:
        wanted, reasons = _wanted(signals, rules, rate, start_s)
        margin = rules.hysteresis * (1 + wanted)
        needed, enough = (max(math.ceil(about), 1) for about in (wanted - margin, wanted + margin))
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


def _wanted(signals: Signals, rules: Rules, rate: float, start_s: float) -> tuple[float, list[Reason]]:
    """Replicas for what comes, and for what will be left when a new one serves."""
    reasons = []
    steady = rate / rules.utilization
    if steady >= QUIET:
        reasons.append(Reason("forecast", f"{rate:.2f} s of work a second forecast in {start_s:.0f} s"))
    live = min(signals.num_live, signals.target)
    seconds, count, extra = 0.0, 0, 0.0
    due = sorted(((_until(each, rules, start_s), each) for each in signals.work), key=lambda pair: pair[0])
    for until_s, each in due:
        seconds, count = seconds + each.seconds, count + each.count
        left_s = seconds + (rate - live) * start_s
        extra = max(extra, min(left_s / until_s, count))
    if signals.work:
        reasons.append(Reason("work", f"{seconds:.1f} s of work in {count} samples"))
    if signals.is_waking:
        reasons.append(Reason("waking", "one to learn what requests take"))
    return steady + extra, reasons or [Reason("quiet", "nothing is here, and nothing is forecast")]


def _until(work: Work, rules: Rules, start_s: float) -> float:
    """Seconds from when a new replica serves until it should be done: what cannot be in time soon all the same."""
    if math.isinf(work.slack_s):
        return rules.batch_drain_s
    return max(work.slack_s - start_s, rules.drain_s)


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
