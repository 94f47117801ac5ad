"""From what was measured to a cost model: least squares of relative errors, no coefficient negative. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from raydiance.serve.engine.cost_model import INFLATION, PARTS, TERMS, CostModel, Part, Sample, Work

SHORTEST_S = 1e-7
"""What takes less is counted as this: relative errors of nothing have no meaning."""
SLACK = 1e-9
"""A sum of squared relative errors must fall by so much before one more term is taken."""


@dataclass(frozen=True, slots=True)
class ErrorStats:
    """|predicted - observed| / observed, over `count`."""

    count: int
    mean: float
    p95: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> ErrorStats:
        """All 0 where there are none."""
        if not errors:
            return cls(0, 0.0, 0.0)
        return cls(len(errors), fmean(errors), quantile(errors, 0.95))


def fit(samples: Iterable[Sample], inflation: float = INFLATION) -> CostModel:
    """A model of the parts that samples are of.

    With fewer samples than terms, the fewest terms that explain them are taken, those that come first in `TERMS` first:
    of one sample, what costs are in proportion to.
    """
    by_part: dict[Part, list[Sample]] = {}
    for sample in samples:
        by_part.setdefault(sample.part, []).append(sample)
    return CostModel({part: _fit(part, by_part[part]) for part in PARTS if part in by_part}, inflation)


def errors(model: CostModel, samples: Iterable[Sample]) -> dict[Part, ErrorStats]:
    """Of a model against samples, by part."""
    found: dict[Part, list[float]] = {}
    for sample in samples:
        observed = max(sample.seconds, SHORTEST_S)
        predicted = model.predict(sample.part, sample.work)
        found.setdefault(sample.part, []).append(abs(predicted - observed) / observed)
    return {part: ErrorStats.of(of_part) for part, of_part in found.items()}


def quantile(values: Iterable[float], q: float) -> float:
    """Linear between the two values that are nearest; raises ValueError where there are none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values, so no quantile of them")
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def non_negative(rows: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """argmin |rows @ x - targets| over x >= 0. Of few columns: every set of them is tried.

    The minimum is that of ordinary least squares on the columns where it is not 0, so it is among those.

    Args:
        rows: [samples, terms].
        targets: [samples].
    """
    num_terms = rows.shape[1]
    best, least = np.zeros(num_terms), float(targets @ targets)
    for count in range(1, num_terms + 1):
        for columns in combinations(range(num_terms), count):
            some = rows[:, columns]
            scale = np.abs(some).max(axis=0)
            if not scale.all():
                continue  # a term of which there was nothing
            found = np.linalg.lstsq(some / scale, targets, rcond=None)[0] / scale
            if (found < 0).any():
                continue
            residual = some @ found - targets
            if (squares := float(residual @ residual)) < least - SLACK:
                best, least = np.zeros(num_terms), squares
                best[list(columns)] = found
    return best


def _fit(part: Part, samples: Sequence[Sample]) -> Work:
    terms = TERMS[part]
    seconds = np.array([max(s.seconds, SHORTEST_S) for s in samples])
    rows = np.array([[float(s.work.get(name, 0.0)) for name in terms] for s in samples])
    found = non_negative(rows / seconds[:, None], np.ones(len(samples)))
    kept: Mapping[str, float] = {name: float(value) for name, value in zip(terms, found, strict=True) if value > 0}
    return kept
