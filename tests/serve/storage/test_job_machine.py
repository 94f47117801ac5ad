"""The job store against a model of it: any sequence of calls ends in the state that TRANSITIONS says."""

from __future__ import annotations

import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from raydiance.serve.errors import Conflict
from raydiance.serve.request import GenerationRequest
from raydiance.serve.storage.job import TRANSITIONS, Job, JobError, JobState, new_job_id
from raydiance.serve.storage.jobs import JobStore

HOOK = "https://example.com/"


class JobMachine(RuleBasedStateMachine):
    jobs = Bundle("jobs")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = JobStore(f"sqlite:///{Path(self.folder.name)}/jobs.db")
        self.expected: dict[str, Job] = {}
        self.ended = 0

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    @rule(target=jobs, created_at=st.integers(0, 3))
    def create(self, created_at: int) -> str:
        request = GenerationRequest(webhook=HOOK)
        job = Job(
            id=new_job_id("image"), kind="image", model="m", request=request, specs=[], created_at=float(created_at)
        )
        self.expected[job.id] = self.store.create(job)
        return job.id

    @rule(job_id=jobs, to=st.sampled_from(list(JobState)))
    def move(self, job_id: str, to: JobState) -> None:
        moves = {
            JobState.QUEUED: lambda: self.store.requeue(job_id),
            JobState.IN_PROGRESS: lambda: self.store.start(job_id),
            JobState.COMPLETED: lambda: self.store.complete(job_id, artifacts=[], timings={}, expires_at=None),
            JobState.FAILED: lambda: self.store.fail(job_id, JobError(message="no")),
            JobState.CANCELLED: lambda: self.store.cancel(job_id),
        }
        before = self.expected[job_id]
        if to not in TRANSITIONS[before.state]:
            with pytest.raises(Conflict, match=f"is {before.state} and cannot become {to}"):
                moves[to]()
            return
        after = moves[to]()
        assert after.state is to
        assert after.attempt == before.attempt + (to is JobState.IN_PROGRESS)
        self.expected[job_id] = after
        self.ended += to.is_final

    @rule(job_id=jobs, progress=st.integers(0, 100))
    def progress(self, job_id: str, progress: int) -> None:
        self.store.set_progress(job_id, progress)
        before = self.expected[job_id]
        if before.state is JobState.IN_PROGRESS:
            self.expected[job_id] = before.model_copy(update={"progress": max(progress, before.progress)})

    @invariant()
    def the_store_agrees(self) -> None:
        jobs, more = self.store.list(limit=1000, order="asc")
        assert not more
        assert jobs == sorted(self.expected.values(), key=lambda j: (j.created_at, j.id))
        assert self.store.unfinished() == [j for j in jobs if not j.state.is_final]

    @invariant()
    def each_end_was_told_once(self) -> None:
        self.ended -= len(self.store.due_webhooks(9e9, limit=1000, lease_s=9e9))
        assert self.ended == 0


JobMachine.TestCase.settings = settings(
    max_examples=15, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestJobMachine = JobMachine.TestCase
