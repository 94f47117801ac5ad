"""Scaling policies for the simulator: Ray Serve's default, written anew from its source, and ours."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from sim_scaling import View

from raydiance.deploy.scaling import Rules, Signals, State, Work, decide


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """`AutoscalingConfig` of Ray Serve 2.60, with its defaults."""

    target_ongoing_requests: float = 2.0
    upscale_delay_s: float = 30.0
    downscale_delay_s: float = 600.0
    look_back_period_s: float = 30.0
    metrics_interval_s: float = 10.0
    upscaling_factor: float = 1.0
    downscaling_factor: float = 1.0
    min_replicas: int = 1
    max_replicas: int = 100

    def __str__(self) -> str:
        delays = f"up {self.upscale_delay_s:g} s, down {self.downscale_delay_s:g} s"
        return f"target {self.target_ongoing_requests:g}, {delays}, look-back {self.look_back_period_s:g} s"


@dataclass
class ServeDefault:
    """The policy `default_autoscaling_policy`, with the averages, factors, delays and bounds that Serve puts around it.

    See ray/serve/autoscaling_policy.py; a test compares both.
    """

    config: ServeConfig
    _seen: deque[tuple[float, int]] = field(default_factory=deque, init=False)
    _told_at: float = field(default=-math.inf, init=False)
    _counter: int = field(default=0, init=False)
    _since: float | None = field(default=None, init=False)

    def replicas(self, view: View) -> int:
        requests = self._average(view.now, len(view.samples))
        return self.decide(view.now, view.num_live, view.target, requests)

    def decide(self, now: float, current: int, target: int, requests: float) -> int:
        """Args: requests: ongoing, queued ones too, on average over the look-back period."""
        c = self.config
        if current == 0:
            wanted = max(math.ceil(c.upscaling_factor), target) if requests > 0 else target
            return self._bounded(wanted)
        wanted = self._scaled(requests / c.target_ongoing_requests, current)
        return self._bounded(self._delayed(now, max(wanted, 0), target))

    def _average(self, now: float, requests: int) -> float:
        """Replicas and handles tell once an interval; what is older than the look-back period is forgotten."""
        if now - self._told_at >= self.config.metrics_interval_s - 1e-9:
            self._told_at = now
            self._seen.append((now, requests))
        while self._seen[0][0] < now - self.config.look_back_period_s:
            self._seen.popleft()
        return sum(count for _, count in self._seen) / len(self._seen)

    def _scaled(self, desired: float, current: int) -> int:
        delta = desired - current
        factor = self.config.upscaling_factor if delta > 0 else self.config.downscaling_factor
        scaled = math.ceil(current + factor * delta)
        return scaled - 1 if math.ceil(desired) < current and scaled == current else scaled

    def _delayed(self, now: float, desired: int, target: int) -> int:
        if desired == target:
            self._counter, self._since = 0, None
            return target
        direction = 1 if desired > target else -1
        if self._counter * direction < 0:
            self._counter, self._since = 0, None
        self._counter += direction
        self._since = now if self._since is None else self._since
        delay_s = self.config.upscale_delay_s if direction > 0 else self.config.downscale_delay_s
        if direction < 0 and target != 1:
            desired = max(1, desired)
        if now - self._since + 1e-6 < delay_s:
            return target
        self._counter, self._since = 0, None
        return desired

    def _bounded(self, wanted: int) -> int:
        return max(self.config.min_replicas, min(self.config.max_replicas, wanted))


@dataclass
class Ours:
    """`raydiance.deploy.scaling`, told of what a dispatcher knows."""

    rules: Rules
    _state: State = field(default_factory=State, init=False)

    def replicas(self, view: View) -> int:
        work = [
            Work(s.deadline - view.now, s.remaining, tier=s.arrival.tier)
            if s.arrival.tier != "batch"
            else Work(math.inf, s.remaining, tier="batch")
            for s in view.samples
        ]
        signals = Signals(view.num_live, view.target, work, view.arrived_s)
        self._state, decision = decide(self._state, signals, self.rules, view.now)
        return decision.replicas
