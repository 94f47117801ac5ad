"""Ranks that compute nothing: their steps take as long as a cost model says. No torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from raydiance.models.card import ModelCard
from raydiance.models.spec import Spec
from raydiance.serve.engine.orders import Outcome, Report, Standing, Start, Turn, Wish
from raydiance.serve.engine.pack_error import PackError
from raydiance.serve.engine.parts import shape_of
from raydiance.serve.engine.ways import Shape
from raydiance.serve.stages.simulated.costs import Simulated
from raydiance.serve.stages.simulated.timeline import Timeline

FORMAT = "raydiance.simulated-trajectory"


@dataclass(frozen=True, slots=True)
class _Held:
    spec: Spec
    standing: Standing


class SimulatedFleet:
    """Satisfies `fleet.Fleet`: trajectories are counters, steps are sleeps, results are marks.

    Args:
        size: ranks.
    """

    def __init__(self, card: ModelCard, simulated: Simulated, size: int) -> None:
        self.card = replace(card, is_simulated=True)
        self.size = size
        self._simulated = simulated
        self._timeline = Timeline()
        self._held: dict[str, _Held] = {}

    def begin(self, start: Start) -> tuple[Standing, Outcome]:
        """Raises PackError where the checkpoint is of something else."""
        spec = start.spec
        step = spec.first_step if start.checkpoint is None else unpack(start.checkpoint, spec)
        branches = 2 if self.card.uses_negative(spec) else 1
        tokens = self._simulated.costs.num_tokens(spec, self.card)
        key = spec.task, spec.height, spec.width, spec.num_frames, spec.audio, branches
        held = _Held(spec, Standing(step, spec.num_inference_steps, key, tokens, branches))
        self._held[start.id] = held
        return held.standing, _outcome(held, Wish())

    def drop(self, ids: Sequence[str]) -> None:
        for each in ids:
            self._held.pop(each, None)

    def step(self, turns: Sequence[Turn]) -> list[Report | Exception]:
        """All turns at once; it returns when the longest has ended."""
        seconds = [self._seconds(turn) for turn in turns]
        self._timeline.sleep(max(seconds))
        return [self._report(turn, took_s) for turn, took_s in zip(turns, seconds, strict=True)]

    def _seconds(self, turn: Turn) -> float:
        """Two batches in lanes take as long as one after the other: what overlap saves is not simulated."""
        ranks = turn.mesh.subgroup.size
        return sum(self._simulated.step_s(self._shape(batch), ranks) for batch in turn.batches)

    def _shape(self, batch: Sequence[str]) -> Shape:
        return shape_of([self._held[each].standing for each in batch])

    def _report(self, turn: Turn, seconds: float) -> Report:
        forwards = [self._shape(batch).num_branches for batch in turn.batches]
        rows = sum(len(batch) * each for batch, each in zip(turn.batches, forwards, strict=True))
        outcomes = {}
        for each in [each for batch in turn.batches for each in batch] if turn.keeps else []:
            held = self._held[each]
            held = replace(held, standing=replace(held.standing, step_index=held.standing.step_index + 1))
            self._held[each] = held
            outcomes[each] = _outcome(held, turn.wishes.get(each, Wish()))
        return Report(outcomes, seconds, sum(forwards), rows)


def _outcome(held: _Held, wish: Wish) -> Outcome:
    step, spec = held.standing.step_index, held.spec
    mark: Any = {"simulated": digest(spec), "step": step}  # in place of latents
    if held.standing.is_done:
        return Outcome(step, result=mark)
    return Outcome(
        step,
        preview=mark if wish.preview else None,
        checkpoint=pack(spec, step) if wish.checkpoint else None,
        is_paused=wish.pause,
    )


def pack(spec: Spec, step: int) -> bytes:
    """A checkpoint."""
    return json.dumps({"format": FORMAT, "spec": digest(spec), "step": step}).encode()


def unpack(data: bytes, spec: Spec) -> int:
    """The step of a checkpoint. Raises PackError where it is none, or of another spec."""
    try:
        header = json.loads(data)
        kind, of, step = header["format"], header["spec"], header["step"]
    except (ValueError, KeyError, TypeError) as e:
        raise PackError(f"no simulated trajectory: {e!r}") from e
    if kind != FORMAT or of != digest(spec) or type(step) is not int or not 0 <= step <= spec.num_inference_steps:
        raise PackError(f"step {step!r} of {of!r} is no checkpoint of this spec")
    return step


def digest(spec: Spec) -> str:
    return hashlib.sha256(json.dumps(spec.to_dict(), sort_keys=True).encode()).hexdigest()[:16]
