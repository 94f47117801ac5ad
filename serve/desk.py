"""Where requests of one model are priced and let in, before any work is done for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from raydiance.models.spec import Spec
from raydiance.serve.admission import Due, Supply, judge
from raydiance.serve.backlog import Sample
from raydiance.serve.engine.price import Price
from raydiance.serve.engine.terms import Terms
from raydiance.serve.pricer import Pricer, Quote, target
from raydiance.serve.request import GenerationRequest
from raydiance.serve.scheduling_config import SchedulingConfig
from raydiance.serve.storage.job import Job

PROMISED_S = 60.0
"""For which room is kept for what was let in, until its job comes."""


@dataclass(slots=True)
class _Entry:
    """What a job still takes of denoisers.

    Args:
        whole: its samples as they came; samples: as they are.
        until: when it is forgotten; None once its job is here.
    """

    whole: list[Sample]
    samples: list[Sample]
    prices: list[Price]
    until: float | None


@dataclass(frozen=True, slots=True)
class Expected:
    """A sample that was let in. Args: price: of its whole; is_here: its job has come; is_begun: it has been stepped."""

    sample: Sample
    price: Price
    is_here: bool
    is_begun: bool


@dataclass(slots=True)
class Come:
    """Seconds of a replica of each stage that have ever come."""

    text_encoder: float = 0.0
    denoiser: float = 0.0
    vae_decoder: float = 0.0

    def add(self, sample: Sample, price: Price) -> None:
        self.text_encoder += price.text_s
        self.denoiser += sample.seconds
        self.vae_decoder += price.inputs_s + price.decode_s + price.file_s


class Desk:
    """Belongs to one event loop. Before `open` everything is let in, at no price.

    Args:
        supply: of denoisers.

    Attributes:
        come: what jobs take that were accepted since, each counted once: of all stages, in seconds.
    """

    def __init__(self, config: SchedulingConfig, supply: Callable[[], Supply]) -> None:
        self._config = config
        self._supply = supply
        self._pricer: Pricer | None = None
        self._entries: dict[str, _Entry] = {}
        self._since = time.time()
        self.come = Come()

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
        alone_s = max(price.total_s for price in prices) + self._pricer.overhead_s
        goal = target(request, now, alone_s, self._config)
        own = Due(goal.due, sum(self._pricer.denoise_s(spec) for spec in specs))
        around_s = max(price.total_s - price.denoise_s for price in prices) + self._pricer.overhead_s
        verdict = judge(now, due := self._due(), own, around_s, self._supply())
        gpu_seconds = sum(self._pricer.gpu_seconds(spec) for spec in specs)
        wait_s = verdict.retry_after_s if self._config.admission and due else 0.0
        return Quote(goal, alone_s, gpu_seconds, verdict.starts_in_s, verdict.finish, wait_s)

    def admit(self, job_id: str, request: GenerationRequest, specs: Sequence[Spec]) -> Quote:
        """The same; what is let in counts from now on."""
        quote = self.quote(request, specs)
        if quote.is_admitted:
            samples, prices = self._samples(job_id, quote, specs, time.time())
            self._entries[job_id] = _Entry(samples, [*samples], prices, time.time() + PROMISED_S)
        return quote

    def enter(self, job: Job, weight: float = 1.0) -> list[Sample]:
        """A job that is taken up: its samples, with their deadlines as they were when it was accepted.

        Args:
            weight: of its tenant, in sharing.
        """
        specs = [Spec.from_dict(values) for values in job.specs]
        quote = self.quote(job.request, specs, job.created_at)
        samples, prices = self._samples(job.id, quote, specs, job.created_at, job.tenant, weight)
        if job.created_at >= self._since and job.attempt == 0:
            for sample, price in zip(samples, prices, strict=False):
                self.come.add(sample, price)
        self._entries[job.id] = _Entry(samples, [*samples], prices, None)
        return samples

    def expected(self) -> Iterator[Expected]:
        """All samples that have not ended, at their prices; those without one are left out."""
        for entry in self._entries.values():
            for whole, sample, price in zip(entry.whole, entry.samples, entry.prices, strict=False):
                yield Expected(sample, price, entry.until is None, sample.seconds < whole.seconds)

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
    ) -> tuple[list[Sample], list[Price]]:
        """Denoising has to end before a sample is due, by what comes after it. Before `open` there are no prices."""
        if self._pricer is None:
            terms = Terms(quote.target.due, quote.target.tier, tenant, weight)
            return [Sample(job_id, i, terms, 0.0, since, _kind(spec)) for i, spec in enumerate(specs)], []
        samples, prices = [], self._pricer.alone(specs)
        for i, (spec, price) in enumerate(zip(specs, prices, strict=True)):
            after_s = price.decode_s + price.file_s + self._pricer.overhead_s
            terms = Terms(quote.target.due - after_s, quote.target.tier, tenant, weight)
            samples.append(Sample(job_id, i, terms, self._pricer.denoise_s(spec), since, _kind(spec)))
        return samples, prices

    def _due(self) -> list[Due]:
        return [Due(s.terms.deadline, s.seconds) for entry in self._entries.values() for s in entry.samples]

    def _forget(self, now: float) -> None:
        over = [job_id for job_id, entry in self._entries.items() if entry.until is not None and entry.until <= now]
        for job_id in over:
            del self._entries[job_id]


def _kind(spec: Spec) -> tuple[object, ...]:
    """What samples that share a batch agree in, as far as it is known before anything is encoded."""
    return spec.task, spec.height, spec.width, spec.num_frames
