"""One arrival of a trace, and traces as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["image", "video"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that comes at a time which does not depend on how earlier ones are served (open loop).

    Args:
        at_s: from the start of the trace.
        session: requests of one user, or of one agent, that belong together.
        tier: interactive, standard or batch.
        size: WIDTHxHEIGHT, or WIDTHxHEIGHTxFRAMES for a video.
        num: samples, each with a seed of its own.
        slo_scale: it should be done within so many times its isolated latency.

    Raises:
        ValueError: a size that does not fit the kind, or a number that is too small.
    """

    at_s: float
    session: str
    tenant: str
    tier: str
    kind: Kind
    size: str
    steps: int
    num: int
    slo_scale: float

    def __post_init__(self) -> None:
        width, height, frames = self.dimensions
        if min(width, height, frames, self.steps, self.num) < 1 or self.at_s < 0 or self.slo_scale <= 0:
            raise ValueError(f"an arrival's numbers are positive: {self}")
        if (self.kind == "video") != (frames > 1):
            raise ValueError(f"size {self.size} is not that of one {self.kind}")

    @property
    def dimensions(self) -> tuple[int, int, int]:
        """Width, height, frames; 1 frame for an image."""
        numbers = [int(part) for part in self.size.split("x")]
        if len(numbers) not in (2, 3):
            raise ValueError(f"a size is WIDTHxHEIGHT or WIDTHxHEIGHTxFRAMES, not {self.size}")
        width, height, *frames = numbers
        return width, height, frames[0] if frames else 1


def write(trace: Sequence[Arrival], path: Path) -> None:
    path.write_text("".join(json.dumps(asdict(arrival)) + "\n" for arrival in trace))


def read(path: Path) -> list[Arrival]:
    """Raises ValueError, naming the line, for what is no arrival or comes before the one above it."""
    trace: list[Arrival] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            arrival = Arrival(**json.loads(line))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        if trace and arrival.at_s < trace[-1].at_s:
            raise ValueError(f"{path}, line {number}: comes before the line above it")
        trace.append(arrival)
    return trace
