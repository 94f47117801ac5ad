"""Scales one deployment: gathers what is known of it, decides, and tells what was decided and why."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from raydiance.deploy.hours import Hours
from raydiance.deploy.mailbox import Mailbox
from raydiance.deploy.scaling import Decision, Rules, Signals, State, Work, decide
from raydiance.deploy.scaling_metrics import ScalingMetrics

log = logging.getLogger("ray.serve")
EXPORT_S = 1.0
_spending: dict[tuple[str, str], float] = {}
"""An hour, by application and deployment: of all that are scaled in this process, Serve's controller."""
_lock = threading.Lock()


class Steering:
    """Args:
    stage: whose work it is, of what dispatchers tell.
    rules: fields of `Rules`, as JSON has them.
    reserved: what the fewest replicas of the other deployments cost an hour.
    """

    def __init__(
        self, app: str, deployment: str, stage: str, models: Iterable[str], rules: Mapping[str, Any], reserved: float
    ) -> None:
        schedule = tuple(Hours(**{**hours, "days": tuple(hours["days"])}) for hours in rules.get("schedule", ()))
        self.rules = Rules(**{**rules, "schedule": schedule})
        self._name = app, deployment
        self._stage = stage
        self._reserved = reserved
        self._mailbox = Mailbox(app, models, deployment)
        self._metrics = ScalingMetrics(app, deployment)
        self._state = State()
        self._logged: tuple[int, tuple[str, ...]] | None = None
        self._exported_at = -math.inf

    def replicas(self, num_live: int, target: int) -> int:
        """That there should be. Raises what a damaged message raises."""
        now = time.time()
        signals = self._signals(num_live, target)
        self._state, decision = decide(self._state, signals, self.rules, now)
        start_s, waiting_s = decision.start_s, self._state.waiting_s(now)
        self._mailbox.tell({"start_s": round(start_s, 1), "waiting_s": round(waiting_s), "target": decision.replicas})
        with _lock:
            _spending[self._name] = decision.replicas * self.rules.cost_per_hour
        self._report(decision, signals, waiting_s)
        return decision.replicas

    def failed(self) -> None:
        """What is told of a decision that could not be made."""
        self._metrics.reasons({"error"})

    def _signals(self, num_live: int, target: int) -> Signals:
        told, age_s = self._mailbox.read()
        work = [
            Work(math.inf if slack_s is None else slack_s, seconds, count, tier)
            for each in told
            for slack_s, seconds, count, tier in each[self._stage]["work"]
        ]
        return Signals(
            num_live=num_live,
            target=target,
            work=work,
            arrived_s=math.fsum(each[self._stage]["arrived_s"] for each in told),
            age_s=age_s,
            is_waking=any(each["is_waking"] for each in told),
            spent_elsewhere=self._elsewhere(),
        )

    def _elsewhere(self) -> float:
        with _lock:
            others = [cost for name, cost in _spending.items() if name != self._name and name[0] == self._name[0]]
        return max(math.fsum(others), self._reserved)

    def _report(self, decision: Decision, signals: Signals, waiting_s: float) -> None:
        words = tuple(reason.word for reason in decision.reasons)
        changed = self._logged is None or self._logged[0] != decision.replicas
        if changed or (words == ("stale",)) != (self._logged is not None and self._logged[1] == ("stale",)):
            log.info(
                "autoscaling of %s: %d -> %d replicas (%d serve): %s",
                self._name[1],
                signals.target,
                decision.replicas,
                signals.num_live,
                decision,
            )
        self._logged = decision.replicas, words
        if changed or time.monotonic() - self._exported_at >= EXPORT_S:
            self._exported_at = time.monotonic()
            seconds: dict[str, float] = defaultdict(float)
            for each in signals.work:
                seconds[each.tier] += each.seconds
            self._metrics.export(decision, signals, seconds, waiting_s, self.rules.cost_per_hour)
