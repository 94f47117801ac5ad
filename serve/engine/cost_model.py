"""What the parts of a generation cost, as a value: seconds from a formula of few parameters. Pure, no torch.

Each part's seconds are a sum of terms, each a count of work times a coefficient that is never negative: so more work
never costs less. Of a denoising step the terms are those of a transformer's FLOPs: what is linear in the tokens,
attention's square of them, and what every forward and every row costs however small it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from raydiance.models.card import ModelCard
from raydiance.models.spec import Spec
from raydiance.serve.engine.ways import Shape

Part = Literal["step", "denoise", "text", "inputs", "decode", "video_file", "image_file", "tokens"]
PARTS: tuple[Part, ...] = get_args(Part)
Work = Mapping[str, float]
"""Counts of work, by term."""

TERMS: Mapping[Part, tuple[str, ...]] = {
    "step": ("work", "work_tokens", "forwards", "rows"),
    "denoise": ("rows", "row_steps", "calls", "steps"),
    "text": ("texts", "calls"),
    "inputs": ("pixel_frames", "pixels", "calls"),
    "decode": ("pixel_frames", "pixel_chunks", "chunks", "calls", "audio_s"),
    "video_file": ("pixel_frames", "frames", "calls"),
    "image_file": ("pixel_frames", "calls"),
    "tokens": ("tokens", "calls", "video_s"),
}
"""What each part is counted in; the first is what it is in proportion to, where little was measured.

`denoise` is what steps leave out: noise, conditioning, and what happens between steps. `tokens` is no time: it is the
length of the transformer's sequence, from what the card knows of a request.
"""
INFLATION = 0.17
"""By how much more than in proportion a doubling of ranks costs, where nothing was measured on so many. Assumed."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Args:
    coefficients: by part and term, seconds a unit; a part that was never measured is missing.
    inflation: GPU-seconds of a step grow by this share with each doubling of its ranks.
    """

    coefficients: Mapping[Part, Work]
    inflation: float = INFLATION

    def __post_init__(self) -> None:
        for part, terms in self.coefficients.items():
            if part not in TERMS:
                raise ValueError(f"{part!r} is not one of {', '.join(PARTS)}")
            for name, value in terms.items():
                if name not in TERMS[part]:
                    raise ValueError(f"{part}.{name} is not one of {', '.join(TERMS[part])}")
                if not (isinstance(value, int | float) and 0 <= value < math.inf):
                    raise ValueError(f"{part}.{name}={value!r} must be a number that is not negative")
        if not (isinstance(self.inflation, int | float) and 0 <= self.inflation < math.inf):
            raise ValueError(f"inflation={self.inflation!r} must be a number that is not negative")

    def knows(self, part: Part) -> bool:
        return part in self.coefficients

    def predict(self, part: Part, work: Work) -> float:
        """Seconds (of `tokens`, tokens). Raises ValueError for a part that was not measured."""
        if part not in self.coefficients:
            raise ValueError(f"the cost model knows nothing of '{part}'; it knows {', '.join(self.coefficients)}")
        return math.fsum(value * work.get(name, 0.0) for name, value in self.coefficients[part].items())

    def seconds(self, shape: Shape, num_ranks: int = 1, cache_factor: float = 1.0) -> float:
        """Of one step. On k ranks: that of one, divided by k, times (1 + inflation) for each doubling.

        Args:
            cache_factor: the share of a step's work that a cache plan leaves to be done.
        """
        alone = self.predict("step", step_work(shape)) * cache_factor
        inflated: float = (1.0 + self.inflation) ** math.log2(num_ranks)
        return alone / num_ranks * inflated

    def num_tokens(self, spec: Spec, card: ModelCard, num_references: int = 0) -> int:
        """Of the transformer's sequence, before anything is encoded; by the card alone where it was not measured.

        Args:
            num_references: pictures that are attended to beside what is generated.
        """
        work = token_work(spec, card, num_references)
        return round(self.predict("tokens", work) if self.knows("tokens") else work["tokens"] + card.max_text_tokens)

    def to_dict(self) -> dict[str, Any]:
        return {"coefficients": {p: dict(t) for p, t in self.coefficients.items()}, "inflation": self.inflation}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CostModel:
        """Raises ValueError where it is none."""
        try:
            coefficients = {part: dict(terms) for part, terms in values["coefficients"].items()}
            return cls(coefficients, values["inflation"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no cost model: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Sample:
    """One part that was measured."""

    part: Part
    work: Work = field(hash=False)
    seconds: float


def step_work(shape: Shape) -> Work:
    """Of one step: `work` counts tokens over all forwards, `work_tokens` the pairs that attention looks at."""
    return {
        "work": shape.work,
        "work_tokens": shape.work * shape.num_tokens,
        "forwards": shape.num_branches * shape.num_batches,
        "rows": shape.num_rows * shape.num_batches,
    }


def denoise_work(num_rows: int, num_steps: int) -> Work:
    """Of what comes before the steps of so many trajectories, and between them."""
    return {"rows": num_rows, "row_steps": num_rows * num_steps, "calls": 1, "steps": num_steps}


def text_work(num_texts: int) -> Work:
    return {"texts": num_texts, "calls": 1}


def inputs_work(spec: Spec) -> Work:
    """Of encoding pictures and videos that are given."""
    pixels = spec.height * spec.width
    return {"pixel_frames": pixels * spec.num_frames, "pixels": pixels, "calls": 1}


def decode_work(spec: Spec, card: ModelCard) -> Work:
    """Of latents to frames: `chunks` are latent frames."""
    pixels, chunks = spec.height * spec.width, (spec.num_frames - 1) // card.temporal_factor + 1
    return {
        "pixel_frames": pixels * spec.num_frames,
        "pixel_chunks": pixels * chunks,
        "chunks": chunks,
        "calls": 1,
        "audio_s": spec.num_frames / spec.fps if spec.audio else 0.0,
    }


def file_part(spec: Spec) -> Part:
    """Which part writing its file is."""
    return "video_file" if spec.is_video else "image_file"


def file_work(spec: Spec) -> Work:
    return {"pixel_frames": spec.height * spec.width * spec.num_frames, "frames": spec.num_frames, "calls": 1}


def token_work(spec: Spec, card: ModelCard, num_references: int = 0) -> Work:
    tokens = card.num_tokens(spec.height, spec.width, spec.num_frames) * (1 + num_references)
    return {"tokens": tokens, "calls": 1, "video_s": spec.num_frames / spec.fps if spec.is_video else 0.0}
