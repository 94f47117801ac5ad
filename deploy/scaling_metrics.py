"""What was decided of a deployment's replicas, for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping

from ray.util import metrics

from raydiance.deploy.scaling import Decision, Signals

TAGS = ("application", "deployment")
REASONS = (
    "forecast",
    "work",
    "quiet",
    "waking",
    "idle",
    "spares",
    "cool-down",
    "minimum",
    "maximum",
    "spend",
    "stale",
    "error",
)


class ScalingMetrics:
    """Of one deployment."""

    def __init__(self, app: str, deployment: str) -> None:
        def gauge(name: str, says: str, *more: str) -> metrics.Gauge:
            made = metrics.Gauge(f"raydiance_autoscaling_{name}", says, tag_keys=(*TAGS, *more))
            made.set_default_tags({"application": app, "deployment": deployment})
            return made

        self._target = gauge("target_replicas", "That were asked for last.")
        self._live = gauge("live_replicas", "That serve.")
        self._wanted = gauge("wanted_replicas", "Before rounding, spares, limits and cool-down.")
        self._forecast = gauge("forecast", "Seconds of a replica that come in a second, when a new one would serve.")
        self._work = gauge("work_seconds", "Seconds of a replica that are to be done.", "tier")
        self._start = gauge("start_seconds", "From asking for a replica until it serves, as measured.")
        self._waiting = gauge("waiting_seconds", "For which the first replica that does not serve yet is waited for.")
        self._age = gauge("signal_age_seconds", "Of what the dispatchers told last.")
        self._spend = gauge("spend_per_hour", "Of the replicas that were asked for.")
        self._reason = gauge("reason", "1 for what the last decision follows from.", "reason")

    def export(
        self,
        decision: Decision,
        signals: Signals,
        seconds: Mapping[str, float],
        waiting_s: float,
        cost_per_hour: float,
    ) -> None:
        self._target.set(decision.replicas)
        self._live.set(signals.num_live)
        self._wanted.set(decision.wanted)
        self._forecast.set(decision.forecast)
        self._start.set(decision.start_s)
        self._waiting.set(waiting_s)
        self._age.set(min(signals.age_s, 1e9))
        self._spend.set(decision.replicas * cost_per_hour)
        for tier in ("interactive", "standard", "batch"):
            self._work.set(seconds.get(tier, 0.0), {"tier": tier})
        self.reasons({reason.word for reason in decision.reasons})

    def reasons(self, words: set[str]) -> None:
        for word in REASONS:
            self._reason.set(float(word in words), {"reason": word})
