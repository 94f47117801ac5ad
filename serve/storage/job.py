"""A job as it is kept: its request, its state machine, what it made and how long that took. No torch."""

from __future__ import annotations

import time
import uuid
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from raydiance.models.spec import Spec
from raydiance.serve.request import GenerationRequest
from raydiance.serve.storage import usage
from raydiance.serve.strikes import Strike

DEFAULT_TENANT = "default"  # of the operator, and of the keys in http.api_key_sha256


class JobState(StrEnum):
    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)


# state -> states it may become; in_progress -> queued is a restart after a crash
TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.IN_PROGRESS, JobState.FAILED, JobState.CANCELLED}),
    JobState.IN_PROGRESS: frozenset({JobState.QUEUED, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED}),
    JobState.COMPLETED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}


class Artifact(BaseModel):
    """One file of a job. `key` is its place in the artifact store; `index` the sample; `simulated`: nothing made."""

    model_config = ConfigDict(frozen=True)

    key: str
    index: int
    variant: Literal["content", "thumbnail", "spritesheet"] = "content"
    content_type: str
    size_bytes: int
    width: int
    height: int
    num_frames: int = 1
    fps: int | None = None
    has_audio: bool = False
    seed: int = 0
    simulated: bool = False


class JobError(BaseModel):
    model_config = ConfigDict(frozen=True)

    message: str
    type: str = "server_error"
    param: str | None = None
    code: str = "generation_failed"


class Job(BaseModel):
    """Times are Unix seconds. `timings` are seconds per stage; `request` is as accepted, with its seed drawn.

    `gpu_seconds` by stage and their `cost` are known when it has ended. `owner` is the dispatcher that walks it, and
    `strikes` what died under it, by the sample's index.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    kind: Literal["image", "video"]
    state: JobState = JobState.QUEUED
    model: str
    request: GenerationRequest
    specs: list[dict[str, Any]]
    progress: int = 0
    attempt: int = 0
    created_at: float
    started_at: float | None = None
    completed_at: float | None = None
    expires_at: float | None = None
    error: JobError | None = None
    artifacts: list[Artifact] = []
    timings: dict[str, float] = {}
    remixed_from: str | None = None
    tenant: str = DEFAULT_TENANT
    gpu_seconds: dict[str, float] = {}
    cost: float | None = None
    group_id: str | None = None
    decisions: dict[str, int] = {}
    owner: str | None = None
    strikes: dict[str, Strike] = {}

    def public(self) -> dict[str, Any]:
        """The job as clients see it: no storage keys, no webhook address, times in whole seconds."""

        def seconds(at: float | None) -> int | None:
            return None if at is None else int(at)

        outputs = [
            {**a.model_dump(exclude={"key", "variant"}), "url": f"/v1/jobs/{self.id}/content?index={a.index}"}
            for a in self.artifacts
            if a.variant == "content"
        ]
        spec = Spec.from_dict(self.specs[0]).to_dict()  # a job of an earlier release lacks what came since
        left_out = ("model", "task", "strength_rounds_up", "extra")
        parameters = {k: v for k, v in spec.items() if k not in left_out} | spec["extra"]
        return {
            "id": self.id,
            "object": "job",
            "kind": self.kind,
            "status": self.state.value,
            "model": self.model,
            "task": spec["task"],
            "progress": self.progress,
            "created_at": seconds(self.created_at),
            "started_at": seconds(self.started_at),
            "completed_at": seconds(self.completed_at),
            "expires_at": seconds(self.expires_at),
            "n": len(self.specs),
            "parameters": parameters,
            "outputs": outputs,
            "error": None if self.error is None else self.error.model_dump(),
            "timings": self.timings,
            "usage": self.usage(),
            "attempt": self.attempt,
            "service_tier": self.request.service_tier or "standard",
            "group": self.group_id,
            "remixed_from": self.remixed_from,
            "tenant": self.tenant,
            "metadata": self.request.metadata,
        }

    def usage(self, share: float = 1.0) -> dict[str, Any] | None:
        """GPU-seconds and cost, of all or a share of it; None until it has ended."""
        return None if self.cost is None else usage.public(self.gpu_seconds, self.cost, share)

    def find(self, index: int = 0, variant: str = "content") -> Artifact | None:
        return next((a for a in self.artifacts if a.index == index and a.variant == variant), None)


def artifact_prefix(job_id: str) -> str:
    """Where all files of a job lie in the artifact store: its inputs, its results. They are deleted together."""
    return f"jobs/{job_id}"


def new_job_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


def now() -> float:
    return time.time()
