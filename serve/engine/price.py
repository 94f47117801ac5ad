"""What a step and a request cost: the one source for scheduling, admission, routing, autoscaling and billing. No torch.

A cost model says what was fitted; what is observed since corrects it, each part by itself. For one thread at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from raydiance.models.card import ModelCard
from raydiance.models.spec import Spec
from raydiance.serve.engine import cost_model
from raydiance.serve.engine.cost_fit import ErrorStats
from raydiance.serve.engine.cost_model import CostModel, Part, Work
from raydiance.serve.engine.cost_residuals import LAST, Correction, Residuals
from raydiance.serve.engine.ways import Costs, Shape

QUANTILE = 0.8
"""Of observed / predicted, for what is to be reckoned with. See `Residuals`."""
MEMO = 4096
"""Shapes whose seconds are kept until the next observation."""


@dataclass(frozen=True, slots=True)
class Price:
    """Of one sample, alone with its batch. Nothing that waits in a queue is in it.

    Args:
        text_s: prompts to embeddings.
        inputs_s: given pictures and videos to latents; 0 where none are taken.
        denoise_s: from joining a denoiser to the last step.
        decode_s: latents to frames.
        file_s: frames to a file; on the CPU, so no GPU-seconds.
        step_s: one step of its batch.
        num_steps: that are run.
        gpu_seconds: of all stages; of a step that several share, its share.
    """

    text_s: float
    inputs_s: float
    denoise_s: float
    decode_s: float
    file_s: float
    step_s: float
    num_steps: int
    gpu_seconds: float

    @property
    def total_s(self) -> float:
        """The isolated latency."""
        return self.text_s + self.inputs_s + self.denoise_s + self.decode_s + self.file_s


class Pricing:
    """Satisfies `policies.base.Prices`.

    Args:
        model: as calibrated.
        costs: of steps on several ranks, as measured; without them they follow from one rank's.
        q: see `Residuals`.
        last: see `Residuals`.
    """

    def __init__(self, model: CostModel, costs: Costs | None = None, q: float = QUANTILE, last: int = LAST) -> None:
        self.model = model
        self._costs = costs
        self._q, self._last = q, last
        self._residuals: dict[tuple[Part, int], Residuals] = {}
        self._told: dict[Part, Correction] = {}
        self._memo: dict[tuple[Shape, int, float], float | None] = {}
        self._residuals_of("step")  # refuses a wrong quantile or length now

    def seconds(self, shape: Shape, num_ranks: int = 1, cache_factor: float = 1.0) -> float | None:
        """Of one step, as is to be reckoned with; None where no layout takes so many ranks.

        Args:
            cache_factor: see `CostModel.seconds`.
        """
        key = shape, num_ranks, cache_factor
        if key not in self._memo:
            if len(self._memo) >= MEMO:
                self._memo.clear()
            self._memo[key] = self._seconds(shape, num_ranks, cache_factor, "upper")
        return self._memo[key]

    def observe(self, shape: Shape, num_ranks: int, seconds: float, cache_factor: float = 1.0) -> None:
        """A step that was made; call it after `Costs.record`, where there are costs."""
        if not self.model.knows("step"):
            return
        predicted_s = self.model.seconds(shape, num_ranks, cache_factor)
        self._residuals_of("step", num_ranks).observe(shape, predicted_s, seconds)
        self._memo.clear()

    def observe_part(self, part: Part, work: Work, seconds: float) -> None:
        """Another part that was done: with `cost_model.text_work` and its like. Without time spent waiting."""
        if self.model.knows(part):
            kind = tuple(sorted(work.items()))
            self._residuals_of(part).observe(kind, self.model.predict(part, work), seconds)
            self._memo.clear()

    def price(self, spec: Spec, card: ModelCard, *, batch: int = 1, degree: int = 1, num_references: int = 0) -> Price:
        """Of one sample, as is to be expected, before any work is done.

        Args:
            batch: samples of its kind that step with it, itself included.
            degree: ranks of each step.
            num_references: pictures that are attended to beside what is generated.

        Raises:
            ValueError: no layout takes so many ranks, or a part of it was never measured.
        """
        guided = card.uses_negative(spec)
        shape = Shape(self.model.num_tokens(spec, card, num_references), batch, 2 if guided else 1)
        step_s, num_steps = self._seconds(shape, degree, 1.0, "typical"), spec.num_inference_steps - spec.first_step
        if step_s is None:
            raise ValueError(f"no layout takes {shape.num_tokens} tokens on {degree} ranks")
        text_s = self._part("text", cost_model.text_work(2 if guided else 1))
        inputs_s = self._part("inputs", cost_model.inputs_work(spec)) if card.accepts(spec.task) else 0.0
        around_s = self._part("denoise", cost_model.denoise_work(batch, num_steps))
        decode_s = self._part("decode", cost_model.decode_work(spec, card))
        file_s = self._part(cost_model.file_part(spec), cost_model.file_work(spec))
        denoise_s = around_s + num_steps * step_s
        gpu_seconds = text_s + inputs_s + decode_s + denoise_s * degree / batch
        return Price(text_s, inputs_s, denoise_s, decode_s, file_s, step_s, num_steps, gpu_seconds)

    def correction(self, part: Part = "step", num_ranks: int = 1) -> Correction:
        """What the model's seconds are multiplied with: as observed here, else as told, else 1."""
        for ranks in (num_ranks, 1):
            found = self._residuals.get((part, ranks))
            if found is not None and found.count:
                return found.correction
        return self._told.get(part, Correction())

    def corrections(self) -> dict[Part, Correction]:
        """By part, for those who price where nothing is observed (`tell`)."""
        return {part: self.correction(part) for part in self.model.coefficients}

    def tell(self, corrections: Mapping[Part, Correction]) -> None:
        """What others have observed: a denoiser its steps, a dispatcher the rest."""
        self._told |= corrections
        self._memo.clear()

    def error_stats(self, part: Part | None = None) -> ErrorStats:
        """Of the last predictions, of one part or of all: |predicted - observed| / observed."""
        found = [r.errors for (name, _), r in self._residuals.items() if part in (None, name)]
        return ErrorStats.of([error for errors in found for error in errors])

    def _seconds(
        self, shape: Shape, num_ranks: int, cache_factor: float, kind: Literal["typical", "upper"]
    ) -> float | None:
        if self._costs is not None:
            best = self._costs.best(num_ranks, shape)
            if best is None:
                return None
            if num_ranks > 1 and best[1] is not None:
                return best[1] * cache_factor
        correction = self.correction("step", num_ranks)
        factor = correction.upper if kind == "upper" else correction.typical
        return self.model.seconds(shape, num_ranks, cache_factor) * factor

    def _part(self, part: Part, work: Work) -> float:
        return self.model.predict(part, work) * self.correction(part).typical

    def _residuals_of(self, part: Part, num_ranks: int = 1) -> Residuals:
        return self._residuals.setdefault((part, num_ranks), Residuals(self._q, self._last))
