"""What a step costs in the simulation: FLOPs of a published model on a GPU, at an assumed share of its peak.

Seconds of a step on one rank are (a + b tokens + c tokens²) x rows x branches / FLOP/s, with a, b and c from the
model's architecture (`raydiance.parallel.roofline`, within 0.1% of `deploy/profiles`); on k ranks they are
t(1) / k x (1 + inflation)^log2(k), and a constant beside. Batching saves that constant and nothing else: a forward of
these sizes fills a GPU. Text encoding, decoding and moving states between ranks cost nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from trace_arrival import Arrival

from raydiance.parallel.mesh import is_power_of_two, powers_of_two
from raydiance.parallel.roofline import MODELS, Model
from raydiance.serve.engine.ways import Shape

PEAK_TFLOPS = 1979 / 2
"""H100 SXM, bfloat16, dense."""
ACHIEVED = 0.4
"""Of the peak, over a whole step. Assumed."""
INFLATION = 0.17
"""More GPU-seconds for every doubling of the ranks."""
OVERHEAD_S = 0.005
"""Of every step: planning, starting, joining. Assumed."""
MAX_DEGREE = 8
"""Ranks of one request: those of a node."""


@dataclass(frozen=True, slots=True)
class Served:
    """A model that is served.

    Args:
        text_tokens: that are part of its sequence.
        max_frames: 1 for a model of images.
    """

    name: str
    model: Model
    text_tokens: int
    branches: int
    max_frames: int

    def shape(self, arrival: Arrival) -> Shape:
        """Of one sample's step: a token is 16x16 pixels, and four frames after the first.

        Raises ValueError for a video where the model makes images.
        """
        width, height, frames = arrival.dimensions
        if frames > self.max_frames:
            raise ValueError(f"{self.name} makes at most {self.max_frames} frames, {arrival.size} is asked for")
        latent_frames = 1 + math.ceil((frames - 1) / 4)
        return Shape(self.text_tokens + latent_frames * (width // 16) * (height // 16), 1, self.branches)


def _named(start: str) -> Model:
    return next(model for model in MODELS if model.name.startswith(start))


SERVED: Mapping[str, Served] = MappingProxyType(
    {
        "wan": Served("Wan 2.2 A14B", _named("Wan 14B"), 0, 2, max_frames=1 << 30),
        "flux": Served("FLUX.1 dev", _named("FLUX.1 dev"), 512, 1, max_frames=1),
    }
)
"""By name of the mix of a trace that asks for what it makes."""


@dataclass(frozen=True)
class Roofline:
    """Implements `Prices` for one model.

    Args:
        flop_s: that one rank achieves.
        inflation: more GPU-seconds for every doubling of the ranks.
        max_degree: more ranks than these cannot take one request.
    """

    model: Model
    flop_s: float = PEAK_TFLOPS * 1e12 * ACHIEVED
    inflation: float = INFLATION
    overhead_s: float = OVERHEAD_S
    max_degree: int = MAX_DEGREE
    _known: dict[tuple[Shape, int], float | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def seconds(self, shape: Shape, num_ranks: int) -> float | None:
        key = shape, num_ranks
        if key not in self._known:
            self._known[key] = self._seconds(shape, num_ranks)
        return self._known[key]

    def _seconds(self, shape: Shape, num_ranks: int) -> float | None:
        if num_ranks > self.max_degree or not is_power_of_two(num_ranks):
            return None
        forward = replace(self.model, tokens=shape.num_tokens).forward_flops
        alone_s = forward * shape.num_rows * shape.num_branches * shape.num_batches / self.flop_s
        return alone_s / num_ranks * (1 + self.inflation) ** math.log2(num_ranks) + self.overhead_s


@dataclass(frozen=True)
class Fixed:
    """Implements `Prices` for what is computed by hand: every row of a step takes as long, on one rank only."""

    row_s: float

    def seconds(self, shape: Shape, num_ranks: int) -> float | None:
        return self.row_s * shape.num_rows if num_ranks == 1 else None


def isolated_s(arrival: Arrival, shape: Shape, prices: Roofline | Fixed, num_ranks: int) -> float:
    """How long a request takes on idle ranks, at the degree that is best for it.

    All its samples run at one degree, as many at a time as there is room for on `num_ranks` ranks or on as many as one
    request can be split over, whichever is less: more ranks do not make a deadline tighter.
    """
    degrees = {k: s for k in powers_of_two(num_ranks) if (s := prices.seconds(shape, k)) is not None}
    room = max(degrees)
    return min(math.ceil(arrival.num / (room // degree)) * arrival.steps * step_s for degree, step_s in degrees.items())
