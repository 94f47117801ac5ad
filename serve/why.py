"""Where a job is and why, in words: what `raydiance jobs why` tells. Pure, no torch."""

from __future__ import annotations

from typing import Any

from raydiance.serve.engine.policies.base import meaning_of
from raydiance.serve.storage.job import Job, JobState

DENOISED_AT = 95
LOSSES = {
    "lost_replica": "the replica that had it died, and it went on from its last checkpoint",
    "recomputed_step": "computed again after that",
}
AWAY = "its dispatcher is away, and takes it up when it is back"


def told(job: Job, waits: str | None, trouble: str | None, at: float) -> dict[str, Any]:
    """Args:
    waits: what a sample of it waits for (`Backlog.why`); None where none waits.
    trouble: why nobody could be asked.
    at: now, in Unix seconds.
    """
    until = job.started_at if job.started_at is not None else job.completed_at or at
    return {
        "id": job.id,
        "object": "job.why",
        "status": job.state.value,
        "where": place_of(job, waits, trouble),
        "waits": waits,
        "waited_s": round(max(until - job.created_at, 0.0), 3),
        "attempt": job.attempt,
        "decisions": [_decision(name, count) for name, count in sorted(job.decisions.items(), key=lambda it: -it[1])],
    }


def place_of(job: Job, waits: str | None, trouble: str | None) -> str:
    """One sentence."""
    state = job.state
    if state is JobState.COMPLETED:
        parts = ", ".join(f"{name.removesuffix('_s')} {seconds:.1f} s" for name, seconds in job.timings.items())
        return f"it is done ({parts})" if parts else "it is done"
    if state is JobState.FAILED:
        return f"it failed: {job.error.message}" if job.error is not None else "it failed"
    if state is JobState.CANCELLED:
        return f"it was cancelled at {job.progress}%"
    if trouble is not None:
        return trouble
    if state is JobState.QUEUED:
        return _again(job, "it waits for a denoiser" if waits else "it is accepted, and about to be taken up")
    if waits:
        return _again(job, f"it is at {job.progress}%, and what is left of it waits for a denoiser")
    if job.progress >= DENOISED_AT:
        return _again(job, "it is denoised, and its files are being made")
    return _again(job, f"it is at {job.progress}%, and being worked on")


def _again(job: Job, where: str) -> str:
    return f"{where}; it was begun {job.attempt} times, as what ran it died" if job.attempt > 1 else where


def _decision(name: str, count: float) -> dict[str, Any]:
    try:
        meaning = LOSSES[name] if name in LOSSES else meaning_of(name)
    except KeyError:  # of another release
        meaning = name.replace("_", " ")
    return {"decision": name, "meaning": meaning, "count": int(count)}
