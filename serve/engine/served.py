"""What each tenant was served lately: GPU-seconds that fade, so that an hour of silence earns no hour of precedence."""

from __future__ import annotations

from dataclasses import dataclass, field

HALF_LIFE_S = 30.0


@dataclass
class Served:
    """Not thread-safe. Args: half_life_s: after which GPU-seconds count half."""

    half_life_s: float = HALF_LIFE_S
    _seconds: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, tenant: str, gpu_seconds: float, now: float) -> None:
        self._seconds[tenant] = (self._of(tenant, now) + gpu_seconds, now)

    def at(self, now: float) -> dict[str, float]:
        """GPU-seconds by tenant."""
        return {tenant: self._of(tenant, now) for tenant in self._seconds}

    def _of(self, tenant: str, now: float) -> float:
        seconds, since = self._seconds.get(tenant, (0.0, now))
        return float(seconds * 0.5 ** (max(now - since, 0.0) / self.half_life_s))
