"""What a job tells while it lives: small, typed, numbered, the same over SSE, Python and long poll. No torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

EventType = Literal["queued", "started", "progress", "preview", "completed", "failed", "cancelled"]
FINAL: frozenset[str] = frozenset({"completed", "failed", "cancelled"})


class Event(BaseModel):
    """Args:
    id: grows within a job, across restarts too; SSE's `Last-Event-ID`.
    data: progress: {step, num_steps, progress (0-100), stage}; preview: {index (sample), preview_index, b64, format};
        completed, failed, cancelled: the job as `GET /v1/jobs/{id}` gives it.
    """

    model_config = ConfigDict(frozen=True)

    id: int
    type: EventType
    job_id: str
    data: dict[str, Any] = {}

    @property
    def is_final(self) -> bool:
        return self.type in FINAL
