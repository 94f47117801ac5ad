"""What a job took: GPU-seconds by stage, and what they cost. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

STAGES: Final = ("text_encode", "denoise", "decode")
# stage -> the parts of a job's `timings` that ran on its device
TIMED: Final[Mapping[str, tuple[str, ...]]] = {
    "text_encode": ("encode_s",),
    "denoise": ("denoise_s",),
    "decode": ("decode_s", "decode_audio_s"),
}


@dataclass(frozen=True, slots=True)
class Used:
    """A sum over jobs. What it is not grouped by is None.

    Args:
        day: of the jobs' ends, YYYY-MM-DD, UTC.
        requests: jobs that ended, however they did.
        gpu_seconds: by stage.
    """

    tenant: str | None
    model: str | None
    day: str | None
    requests: int
    gpu_seconds: dict[str, float]
    cost: float


def by_stage(gpu_seconds: Mapping[str, float] | None) -> dict[str, float]:
    """With every stage, and none that is unknown. Raises ValueError for an unknown stage or less than nothing."""
    given = gpu_seconds or {}
    if unknown := set(given) - set(STAGES):
        raise ValueError(f"{sorted(unknown)[0]} is no stage; there are {', '.join(STAGES)}")
    if any(seconds < 0 for seconds in given.values()):
        raise ValueError(f"GPU-seconds below 0: {dict(given)}")
    return {stage: float(given.get(stage, 0.0)) for stage in STAGES}


def from_timings(timings: Mapping[str, float]) -> dict[str, float]:
    """GPU-seconds of a job of which only seconds per stage are known."""
    return {stage: sum(timings.get(name, 0.0) for name in names) for stage, names in TIMED.items()}


def public(gpu_seconds: Mapping[str, float], cost: float, share: float = 1.0) -> dict[str, Any]:
    """As clients see it.

    Args:
        share: of the job that is meant.
    """
    shown = {stage: round(gpu_seconds.get(stage, 0.0) * share, 4) for stage in STAGES}
    total = round(sum(gpu_seconds.values()) * share, 4)
    return {"gpu_seconds": {**shown, "total": total}, "cost": round(cost * share, 6)}
