"""Where requests of one model are priced and let in, before any work is done for them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from raydiance.models.spec import Spec
from raydiance.serve.admission import Due, judge
from raydiance.serve.backlog import Backlog, Sample
from raydiance.serve.engine.terms import Terms
from raydiance.serve.pricer import Pricer, Quote, target
from raydiance.serve.request import GenerationRequest
from raydiance.serve.scheduling_config import SchedulingConfig
from raydiance.serve.storage.job import Job

PROMISED_S = 60.0
"""For which room is kept for what was let in, until its job comes."""


@dataclass(slots=True)
class _Entry:
    """What a job still takes of denoisers. Args: until: when it is forgotten; None once its job is here."""

    samples: list[Sample]
    until: float | None


class Desk:
    """Belongs to one event loop. Before `open` everything is let in, at no price."""

    def __init__(self, config: SchedulingConfig, backlog: Backlog, num_replicas: int) -> None:
        self._config = config
        self._backlog = backlog
        self._capacity = float(num_replicas)
        self._pricer: Pricer | None = None
        self._entries: dict[str, _Entry] = {}

    def open(self, pricer: Pricer) -> None:
        """From now on what requests take is known."""
        self._pricer = pricer

    @property
    def pricer(self) -> Pricer | None:
        return self._pricer

    def quote(self, request: GenerationRequest, specs: Sequence[Spec], now: float | None = None) -> Quote:
        """What a request takes, and whether it is done in time beside what is here.

        Where nothing is here it is let in, whatever its price says: prices are corrected by what is done alone.
        """
        now = time.time() if now is None else now
        self._forget(now)
        if self._pricer is None:
            return Quote(target(request, now, 0.0, self._config), 0.0, 0.0, 0.0, now)
        prices = self._pricer.alone(specs)
        alone_s = max(price.total_s for price in prices)
        goal = target(request, now, alone_s, self._config)
        own = Due(goal.due, sum(self._pricer.denoise_s(spec) for spec in specs))
        around_s = max(price.total_s - price.denoise_s for price in prices)
        verdict = judge(now, due := self._due(), own, around_s, self._capacity)
        gpu_seconds = sum(self._pricer.gpu_seconds(spec) for spec in specs)
        wait_s = verdict.retry_after_s if self._config.admission and due else 0.0
        return Quote(goal, alone_s, gpu_seconds, verdict.starts_in_s, verdict.finish, wait_s)

    def admit(self, job_id: str, request: GenerationRequest, specs: Sequence[Spec]) -> Quote:
        """The same; what is let in counts from now on."""
        quote = self.quote(request, specs)
        if quote.is_admitted:
            self._entries[job_id] = _Entry(self._samples(job_id, quote, specs, time.time()), time.time() + PROMISED_S)
        return quote

    def enter(self, job: Job, weight: float = 1.0) -> list[Sample]:
        """A job that is taken up: its samples, with their deadlines as they were when it was accepted.

        Args:
            weight: of its tenant, in sharing.
        """
        specs = [Spec.from_dict(values) for values in job.specs]
        quote = self.quote(job.request, specs, job.created_at)
        samples = self._samples(job.id, quote, specs, job.created_at, job.tenant, weight)
        self._entries[job.id] = _Entry(samples, None)
        return samples

    def left(self, sample: Sample, seconds: float) -> Sample:
        """How much of a sample remains; it counts for so much from now on."""
        found = replace(sample, seconds=seconds)
        if (entry := self._entries.get(sample.job_id)) is not None:
            entry.samples[sample.index] = found
        return found

    def leave(self, job_id: str) -> None:
        """A job that has ended, or was never stored."""
        self._entries.pop(job_id, None)

    def _samples(
        self, job_id: str, quote: Quote, specs: Sequence[Spec], since: float, tenant: str = "", weight: float = 1.0
    ) -> list[Sample]:
        """Denoising has to end before a sample is due, by what comes after it."""
        if self._pricer is None:
            terms = Terms(quote.target.due, quote.target.tier, tenant, weight)
            return [Sample(job_id, i, terms, 0.0, since, _kind(spec)) for i, spec in enumerate(specs)]
        samples = []
        for i, (spec, price) in enumerate(zip(specs, self._pricer.alone(specs), strict=True)):
            terms = Terms(quote.target.due - price.decode_s - price.file_s, quote.target.tier, tenant, weight)
            samples.append(Sample(job_id, i, terms, self._pricer.denoise_s(spec), since, _kind(spec)))
        return samples

    def _due(self) -> list[Due]:
        return [Due(s.terms.deadline, s.seconds) for entry in self._entries.values() for s in entry.samples]

    def _forget(self, now: float) -> None:
        over = [job_id for job_id, entry in self._entries.items() if entry.until is not None and entry.until <= now]
        for job_id in over:
            del self._entries[job_id]


def _kind(spec: Spec) -> tuple[object, ...]:
    """What samples that share a batch agree in, as far as it is known before anything is encoded."""
    return spec.task, spec.height, spec.width, spec.num_frames
