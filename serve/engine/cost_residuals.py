"""How far observed costs were from predicted ones, lately: what corrects the next ones, and the error. No torch."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from raydiance.serve.engine.cost_fit import quantile

LAST = 16
"""Runs that count."""
RUN = 8
"""Observations of one kind of work, one after the other, that count as one: else a long generation would push all
others out, and what the formula is off by for its size would be taken for the machine's doing."""
FEWEST = 4
"""Until there are so many runs, the others are taken to have been as predicted: one hiccup is no slowdown."""
LAST_ERRORS = LAST * RUN


class Correction(NamedTuple):
    """What predicted seconds are multiplied with.

    Args:
        typical: for what is to be expected: a price.
        upper: for what is to be reckoned with: whether a deadline is kept.
    """

    typical: float = 1.0
    upper: float = 1.0


@dataclass(slots=True)
class _Run:
    kind: Hashable
    ratios: list[float]


class Residuals:
    """Of one part of a generation.

    Args:
        q: the quantile of observed / predicted that is the upper correction; the median is the typical one.
        last: runs that count. A slowdown has gone into the correction, and out of it again, after `last * RUN`
            observations at the latest.
    """

    def __init__(self, q: float, last: int = LAST) -> None:
        if not 0.5 <= q <= 1.0:
            raise ValueError(f"quantile={q} must be between 0.5 and 1")
        if last < 1:
            raise ValueError(f"last={last} must be at least 1")
        self.correction = Correction()
        self._q = q
        self._fewest = min(FEWEST, last)
        self._runs: deque[_Run] = deque(maxlen=last)
        self._errors: deque[float] = deque(maxlen=LAST_ERRORS)

    def observe(self, kind: Hashable, uncorrected_s: float, observed_s: float) -> None:
        """Nothing, where either is no time at all.

        Args:
            kind: equal for work of one shape.
        """
        if not (0 < uncorrected_s < math.inf and 0 < observed_s < math.inf):
            return
        self._errors.append(abs(uncorrected_s * self.correction.typical - observed_s) / observed_s)
        if not self._runs or self._runs[-1].kind != kind or len(self._runs[-1].ratios) >= RUN:
            self._runs.append(_Run(kind, []))
        self._runs[-1].ratios.append(observed_s / uncorrected_s)
        as_predicted = [1.0] * (self._fewest - len(self._runs))
        ratios = [*(fmean(run.ratios) for run in self._runs), *as_predicted]
        self.correction = Correction(quantile(ratios, 0.5), quantile(ratios, self._q))

    @property
    def count(self) -> int:
        """Runs that were seen, `last` at most."""
        return len(self._runs)

    @property
    def errors(self) -> list[float]:
        """|predicted - observed| / observed, as it was predicted at the time: corrected by what was known then."""
        return list(self._errors)
