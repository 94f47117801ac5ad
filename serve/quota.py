"""What a tenant may use, and whether a request stays within it. Pure.

GPU-seconds of a minute are charged when a job is accepted, as they are expected, and corrected when it ends. A minute
is 60 whole seconds of the clock; a day and a month are those of UTC.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from raydiance.serve.errors import Forbidden, TooManyRequests

MINUTE_S = 60
MIN_WAIT_S = 1.0
ROUNDING = 1e-9  # of a sum of floats, relative to its limit


@dataclass(frozen=True, slots=True)
class Limits:
    """None is no limit.

    Args:
        concurrency: samples that are queued or in progress.
        gpu_seconds_per_minute: charged within 60 seconds.
        gpu_seconds_per_day: used today by jobs that have ended, and expected of those that have not.
        monthly_budget: cost of this month, counted likewise.
        allowed_models, allowed_tiers: what may be asked for.
        weight: share of GPU-seconds under saturation, relative to other tenants'.

    Raises:
        ValueError: a number is not above 0, or a list is empty.
    """

    concurrency: int | None = None
    gpu_seconds_per_minute: float | None = None
    gpu_seconds_per_day: float | None = None
    monthly_budget: float | None = None
    allowed_models: tuple[str, ...] | None = None
    allowed_tiers: tuple[str, ...] | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        for name in ("concurrency", "gpu_seconds_per_minute", "gpu_seconds_per_day", "monthly_budget", "weight"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}={value} must be a number above 0")
        for name in ("allowed_models", "allowed_tiers"):
            if getattr(self, name) == ():
                raise ValueError(f"{name} must name one at least")


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request asks for.

    Args:
        tenant: None is the operator, whom nothing limits.
        gpu_seconds: expected, of all samples; 0 where they are not known: then what is used is charged at the end.
        price: of a GPU-second, as agreed at acceptance.
        group: of the tenant's, whose budget counts too.
    """

    tenant: str | None
    model: str
    tier: str
    num_samples: int
    gpu_seconds: float = 0.0
    price: float = 1.0
    group: str | None = None

    @property
    def cost(self) -> float:
        return self.gpu_seconds * self.price


@dataclass(frozen=True, slots=True)
class Counters:
    """What a tenant uses now.

    Args:
        unfinished: of each job, when it is expected to end (Unix seconds), and its samples.
        minute: Unix second and GPU-seconds that were charged in it, of the last 60.
        day: GPU-seconds of today.
        month: cost of this month.
    """

    unfinished: tuple[tuple[float, int], ...] = ()
    minute: tuple[tuple[int, float], ...] = ()
    day: float = 0.0
    month: float = 0.0


def refusal(limits: Limits, counters: Counters, ask: Ask, now: float) -> Forbidden | TooManyRequests | None:
    """Why the request is not let in at `now` (Unix seconds); None if it is.

    Forbidden is what no waiting changes. Of several limits that are reached, the one that holds longest is named;
    `retry_after_s` is exact for the minute, until midnight UTC for the day, until the month ends for the budget, and
    for concurrency when enough samples are expected to have ended.
    """
    if (never := _never(limits, ask)) is not None:
        return never
    waits = [
        _wait("concurrency", limits.concurrency, counters.unfinished, ask.num_samples, now, MIN_WAIT_S),
        _wait(
            "gpu_seconds_per_minute",
            limits.gpu_seconds_per_minute,
            [(second + MINUTE_S, amount) for second, amount in counters.minute],
            ask.gpu_seconds,
            now,
        ),
        _wait("gpu_seconds_per_day", limits.gpu_seconds_per_day, [(day_end(now), counters.day)], ask.gpu_seconds, now),
        _wait("monthly_budget", limits.monthly_budget, [(month_end(now), counters.month)], ask.cost, now),
    ]
    longest = max((wait for wait in waits if wait is not None), default=None)
    if longest is None:
        return None
    wait_s, what = longest
    return TooManyRequests(f"tenant '{ask.tenant}' has reached its limit {what}", wait_s)


def day_end(now: float) -> float:
    """The next midnight UTC, in Unix seconds."""
    return (_midnight(now) + timedelta(days=1)).timestamp()


def month_start(now: float) -> datetime:
    return _midnight(now).replace(day=1)


def month_end(now: float) -> float:
    """When the next month begins in UTC, in Unix seconds."""
    return (month_start(now) + timedelta(days=32)).replace(day=1).timestamp()


def _midnight(now: float) -> datetime:
    return datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def _never(limits: Limits, ask: Ask) -> Forbidden | None:
    """What is refused whenever it comes."""
    if limits.allowed_models is not None and ask.model not in limits.allowed_models:
        allowed = ", ".join(limits.allowed_models)
        return Forbidden(f"tenant '{ask.tenant}' may not use model '{ask.model}'; it may use {allowed}", "model")
    if limits.allowed_tiers is not None and ask.tier not in limits.allowed_tiers:
        allowed = ", ".join(limits.allowed_tiers)
        message = f"tenant '{ask.tenant}' may not use service_tier '{ask.tier}'; it may use {allowed}"
        return Forbidden(message, "service_tier")
    for name, what, asked, param in (
        ("concurrency", "samples", ask.num_samples, "n"),
        ("gpu_seconds_per_minute", "GPU-seconds", ask.gpu_seconds, None),
        ("gpu_seconds_per_day", "GPU-seconds", ask.gpu_seconds, None),
        ("monthly_budget", "of cost", ask.cost, None),
    ):
        limit = getattr(limits, name)
        if limit is not None and not fits(0, asked, limit):
            message = f"the request takes {asked:g} {what}, more than {name}={limit:g} of tenant '{ask.tenant}' lets in"
            return Forbidden(message, param, "quota_too_small")
    return None


def _wait(
    name: str,
    limit: float | None,
    leaving: Iterable[tuple[float, float]],
    asked: float,
    now: float,
    at_least_s: float = 0.0,
) -> tuple[float, str] | None:
    """Seconds until `asked` fits below the limit, and the limit in words; None if it fits now.

    Args:
        leaving: when each amount that counts now counts no longer, and the amount.
    """
    if limit is None:
        return None
    rest = sorted(leaving)
    used = math.fsum(amount for _, amount in rest)
    for i in range(len(rest) + 1):
        if fits(math.fsum(amount for _, amount in rest[i:]), asked, limit):
            wait_s = rest[i - 1][0] - now if i else None
            break
    return None if wait_s is None else (max(wait_s, at_least_s), f"{name}={limit:g} (used: {used:g}, asked: {asked:g})")


def fits(used: float, asked: float, limit: float) -> bool:
    """Something must be left, also for a request whose price is not known."""
    return used + asked <= limit * (1 + ROUNDING) and used < limit
