"""Every family's tokens, handed to what is outside: the same result whoever holds them. See `tests/tokens.py`."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tests.families import ltx
from tests.families.kit import Case, Model, all_models, variants
from tests.tokens import Board, Rank, Recorder, Share

from raydiance.models.family import Family, Row
from raydiance.models.tokens import Projection, Streams

EXACT = 1e-5
NUM_RANKS = 3
WITHOUT_STG = {name: scale for name, scale in ltx.SCALES.items() if "stg" not in name}
PADDED_TEXT = Case("i2v", ltx.spec("image-to-video", extra=WITHOUT_STG), ltx.given())
PAIRS = [*((model, case) for model in all_models() for case in model.cases), (ltx.OLD, PADDED_TEXT)]
CASES = {f"{model.name}-{case.id}": (model, case) for model, case in PAIRS}
TO_ITSELF = {
    "wan": [("video",)],
    "flux": [("text", "image")],
    "hidream": [("image", "t5", "llama", "llama")],
    "ltx": [("video",), ("audio",)],
}
"""Which streams attend to themselves, together."""
DENOISED = {"wan": {"video"}, "flux": {"image"}, "hidream": {"image"}, "ltx": {"video", "audio"}}


def rows_of(model: Model, case: Case) -> list[Row]:
    """Three that share a forward, of other prompts and guidance: at the first step, the second and the last."""
    studio, rows = model.studio, []
    for i, variant in enumerate(variants(case, model.studio.denoiser.card)):
        start = studio.start(variant)
        timesteps = studio.denoiser.new_solver(variant.spec).timesteps
        step = (start.step_index, start.step_index + 1, len(timesteps) - 1)[i]
        rows.append(Row(variant.spec, start.latents, timesteps[step], step, start.fixed.conditioning))
    return rows


def predict(model: Model, rows: Sequence[Row], tokens: Any) -> torch.Tensor:
    family = model.studio.denoiser
    family.set_tokens(tokens)
    try:
        return torch.stack(family.predict(rows))
    finally:
        family.set_tokens(None)


def modules(family: Any) -> list[torch.nn.Module]:
    parts = [part for part in family.pipeline.components.values() if isinstance(part, torch.nn.Module)]
    return [module for part in parts for module in part.modules()]


@pytest.mark.parametrize(("model", "case"), CASES.values(), ids=CASES)
def test_all_that_is_begun_is_cut_attended_to_and_what_is_denoised_is_joined(model, case):
    rows, recorder = rows_of(model, case), Recorder()
    family = model.studio.denoiser
    expected = torch.stack(family.predict(rows))
    assert torch.equal(predict(model, rows, recorder), expected)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in modules(family))
    assert torch.equal(torch.stack(family.predict(rows)), expected)
    name = family.card.family
    assert len(recorder.forwards) == len(recorder.results)
    for seen in recorder.forwards:
        assert seen.cut == set(seen.lengths)
        assert seen.joined == DENOISED[name]
        assert {queries for queries, keys in seen.attended if keys is None} == set(TO_ITSELF[name])
        num_tokens = sum(seen.total(streams) for streams in TO_ITSELF[name])
        assert num_tokens == family.num_tokens(rows[0].spec, rows[0].conditioning)


@pytest.mark.parametrize(
    ("name", "num_together", "num_apart"),
    [
        ("wan-ti2v-t2v", 2, 2),
        ("flux-dev-t2i", 1, 1),
        ("flux-dev-t2i-true-cfg", 2, 2),
        ("hidream-full-t2i", 1, 2),
        ("ltx-t2v", 3, 4),
        ("ltx-t2v-plain", 1, 2),  # one of its rows is guided
        ("ltx-distilled-t2v", 1, 1),
    ],
)
def test_branches_are_forwards_of_their_own_where_several_can_be_under_way(name, num_together, num_apart):
    model, case = CASES[name]
    rows, together, apart = rows_of(model, case), Recorder(), Recorder(concurrency=2)
    predictions = predict(model, rows, together), predict(model, rows, apart)
    assert (predictions[0] - predictions[1]).abs().max() <= EXACT * predictions[0].abs().max()
    assert (len(together.results), len(apart.results)) == (num_together, num_apart)


class Lazy(Recorder):
    """Args: made: names of the projections that were run."""

    def __init__(self, made: list[str]) -> None:
        super().__init__()
        self.made = made

    def attend(
        self, q: Projection, k: Projection, v: Projection, queries: Streams, keys: Streams | None = None
    ) -> torch.Tensor:
        def checked(projection: Projection, letter: str) -> torch.Tensor:
            assert not self.made
            x = projection()
            assert self.made
            assert {name.removeprefix("add_").removeprefix("to_")[0] for name in self.made} == {letter}
            self.made.clear()
            return x

        return super().attend(lambda: checked(q, "q"), lambda: checked(k, "k"), lambda: checked(v, "v"), queries, keys)


@pytest.mark.parametrize("name", ["wan-i2v-2-1-i2v", "flux-dev-t2i", "hidream-full-t2i", "ltx-t2v-plain"])
def test_projections_are_made_when_they_are_asked_for(name):
    (model, case), made = CASES[name], []
    family, handles = model.studio.denoiser, []
    for part in modules(family):
        for child, module in part.named_children():
            if child.startswith(("to_q", "to_k", "to_v", "add_")):
                handles.append(module.register_forward_hook(lambda *_, child=child: made.append(child)))
    tokens = Lazy(made)
    try:
        predict(model, rows_of(model, case), tokens)
    finally:
        for handle in handles:
            handle.remove()
    assert all(seen.attended for seen in tokens.forwards)


@functools.cache
def copies(model: Model) -> list[Family]:
    return [copy.deepcopy(model.studio.denoiser) for _ in range(NUM_RANKS)]


def check_ranks(model: Model, case: Case, share: Share) -> None:
    """Forward by forward: guidance would multiply what differs in the last bits."""
    rows, whole, board = rows_of(model, case), Recorder(), Board(NUM_RANKS)
    predict(model, rows, whole)
    families = copies(model)

    def run(index: int) -> list[torch.Tensor]:
        rank = Rank(board, index, share)
        families[index].set_tokens(rank)
        with contextlib.ExitStack() as failed:
            failed.callback(board.barrier.abort)  # nobody waits for it
            families[index].predict(rows)
            failed.pop_all()
        return rank.results

    with ThreadPoolExecutor(NUM_RANKS) as pool:
        ranks = [pool.submit(run, index) for index in range(NUM_RANKS)]
    if errors := [error for rank in ranks if isinstance(error := rank.exception(), Exception)]:
        raise ExceptionGroup("ranks failed", errors)
    for rank in ranks:
        for mine, expected in zip(rank.result(), whole.results, strict=True):
            assert (mine - expected).abs().max() <= EXACT


def unevenly(stream: str, length: int) -> Sequence[int]:
    first, second = -(-length // 2), length // 3
    return first, second, length - first - second


@pytest.mark.parametrize(("model", "case"), CASES.values(), ids=CASES)
def test_three_ranks_that_each_hold_a_part_find_what_one_finds(model, case):
    check_ranks(model, case, unevenly)


@pytest.mark.parametrize(
    ("name", "none"), [("flux-dev-t2i", "text"), ("ltx-t2v", "audio"), ("ltx-i2v", "audio"), ("ltx-2.0-i2v", "audio")]
)
def test_a_rank_may_hold_none_of_a_stream(name, none):
    check_ranks(*CASES[name], lambda s, n: (n - 1, 1, 0) if s == none else unevenly(s, n))
