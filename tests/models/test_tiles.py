"""Decoding in tiles: diffusers' pixels, whoever runs the tiles."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import vaes
from tests.families.kit import all_models, naive_attention

from raydiance.models import image_vae, ltx_vae, wan
from raydiance.models.family import Family
from raydiance.models.tiles import TileRunner, Tiling, wants_tiles
from raydiance.models.tokens import Forward, Whole, run_in_turn

torch.set_num_threads(1)  # sums in the same order everywhere, and the machine's other cores are left alone
# rows and columns of latents, of which tiles have 4, 3 apart
SIZES = ((5, 4), (4, 5), (5, 8), (2, 8), (7, 6), (4, 4), (2, 3))
OLD_LTX_SIZES = (
    (5, 5),
    (2, 8),
    (8, 6),
    (4, 4),
    (2, 3),
)  # diffusers' own makes tiles of one latent of the others, and fails
CASES = [(name, size) for name in vaes.NAMES for size in (OLD_LTX_SIZES if name == "ltx-old" else SIZES)]
make = functools.cache(vaes.make)


@pytest.mark.parametrize(("name", "size"), [pytest.param(n, s, id=f"{n}-{s[0]}x{s[1]}") for n, s in CASES])
def test_the_pixels_are_those_of_diffusers(name: str, size: tuple[int, int]) -> None:
    vae = make(name, torch.float64)  # in float32 the order of sums follows how memory is aligned, on some CPUs
    z = vae.latents(*size)
    ours, theirs = vae.tiled(z), vae.diffusers(z)
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= 1e-9
    assert theirs.std() > 1e-3


def test_a_latent_that_cannot_be_reflected_is_left_to_the_tile_before() -> None:
    vae = make("ltx-old")
    z = vae.latents(3, 7)
    with pytest.raises(RuntimeError, match="Padding size should be less"):
        vae.diffusers(z)
    assert [col for _, col in vae.tiling.grid(3, 7)[0]] == [slice(0, 4), slice(3, 7)]
    ours, last = vae.tiled(z), vae.tiled(z[..., 3:])
    assert ours.shape[-1] == 7 * 32
    assert torch.equal(ours[..., 4 * 32 :], last[..., 32:])


@pytest.mark.parametrize("name", ["image", "wan-patches", "ltx"])
def test_they_are_in_bfloat16_too(name: str) -> None:
    vae = make(name, torch.bfloat16)
    z = vae.latents(5, 6)
    assert torch.equal(vae.tiled(z), vae.diffusers(z))


@pytest.mark.parametrize("name", vaes.NAMES)
def test_each_forward_gives_what_it_says(name: str) -> None:
    vae, seen = make(name), []

    def run(forwards: Sequence[Forward]) -> list[torch.Tensor]:
        made = run_in_turn(forwards)
        for forward, tensor in zip(forwards, made, strict=True):
            assert (forward.shape, forward.dtype, forward.device) == (tensor.shape, tensor.dtype, tensor.device)
        seen.extend(tensor.numel() for tensor in made)
        return made

    vae.tiled(vae.latents(5, 7), run)
    assert len(seen) == 2 * (2 if name == "ltx-old" else 3)
    assert seen == sorted(seen, reverse=True)  # so that ranks that take turns have about as much to do each


def test_tiles_that_are_run_in_any_order_and_interleaved_are_the_same() -> None:
    vae = make("wan")
    z = vae.latents(5, 7)
    backwards = vae.tiled(z, lambda forwards: run_in_turn(forwards[::-1])[::-1])
    assert torch.equal(backwards, vae.tiled(z))


def test_tiles_of_one_latent_lie_side_by_side() -> None:
    vae = make("image")
    sample_size, scale = 2, vae.tiling.scale
    module = type(vae.module).from_config({**vae.module.config, "sample_size": sample_size}).eval()
    assert image_vae.tiling(module) == Tiling((1, 1), (1, 1), scale)
    with torch.no_grad():
        pixels = image_vae.decode_tiled(module, vae.latents(2, 3), run_in_turn)
        last = image_vae.decode_tiled(module, vae.latents(2, 3)[..., 1:, 2:], run_in_turn)
    assert pixels.shape[-2:] == (2 * scale, 3 * scale)
    assert torch.equal(pixels[..., scale:, 2 * scale :], last)


def test_what_is_not_wanted_here_is_not_made() -> None:
    vae = make("image")
    assert vae.tiled(vae.latents(5, 5), lambda forwards: []) is None


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 9), st.integers(1, 9), st.integers(1, 2))
def test_tiles_hold_every_latent_and_are_long_enough(
    height: int, width: int, size: int, stride: int, fewest: int
) -> None:
    size += fewest
    stride = min(stride, size - fewest + 1)
    tiling = Tiling((size, 9), (stride, 3), 8, fewest)
    grid = tiling.grid(height, width)
    rows, cols = [row[0][0] for row in grid], [col for _, col in grid[0]]
    assert grid == [[(row, col) for col in cols] for row in rows]
    for spans, length in ((rows, height), (cols, width)):
        assert {i for span in spans for i in range(span.start, span.stop)} == set(range(length))
        assert all(span.stop - span.start >= min(fewest, length) for span in spans)
    assert (len(rows) * len(cols) > 1) <= tiling.splits(height, width)
    assert tiling.overlap == (8 * (size - stride), 8 * 6)


@pytest.mark.parametrize(("stride", "fewest", "longest"), [(0, 1, 8), (-1, 1, 8), (9, 1, 8), (8, 2, 7)])
def test_tiles_that_leave_gaps_are_refused(stride: int, fewest: int, longest: int) -> None:
    with pytest.raises(ValueError, match=f"tiles of 8 latents, {stride} apart: the stride must be from 1 to {longest}"):
        Tiling((8, 8), (6, stride), 8, fewest)


class Recorder:
    """Runs forwards in turn, as if several could be under way at once."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.ran: list[int] = []

    def run(self, forwards: Sequence[Forward]) -> list[torch.Tensor]:
        self.ran.append(len(forwards))
        return run_in_turn(forwards)


@pytest.mark.parametrize(
    ("small", "concurrency", "is_large", "size", "wanted"),
    [
        (False, 2, False, (5, 5), False),  # what is small is decoded as on one rank, unless asked for
        (True, 2, False, (5, 5), True),
        (True, 1, False, (5, 5), False),
        (True, 2, False, (4, 4), False),  # one tile
        (False, 2, True, (5, 5), True),
    ],
)
def test_small_pictures_are_tiled_where_that_is_asked_for(
    small: bool, concurrency: int, is_large: bool, size: tuple[int, int], wanted: bool
) -> None:
    tokens = TileRunner(Recorder(concurrency), small=small)
    assert wants_tiles(tokens, Tiling((4, 4), (3, 3), 8), torch.zeros(1, 4, *size), is_large) is wanted


def test_without_a_runner_only_what_is_large_is_tiled() -> None:
    tiling, z = Tiling((4, 4), (3, 3), 8), torch.zeros(1, 4, 5, 5)
    for tokens in (None, Whole(naive_attention)):
        assert not wants_tiles(tokens, tiling, z, is_large=False)
        assert wants_tiles(tokens, tiling, z, is_large=True)


def test_a_runner_of_tiles_attends_to_nothing() -> None:
    q = torch.zeros(1, 2, 1, 4)
    with pytest.raises(TypeError, match="for decoders"):
        TileRunner(Recorder(2)).attend(lambda: q, lambda: q, lambda: q, ("video",))


FAMILIES = {m.name: m for m in all_models() if m.name in ("flux-dev", "hidream-full", "ltx", "wan-ti2v")}
LIMITS = (image_vae, ltx_vae, wan)


@pytest.fixture(params=FAMILIES)
def decoding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Family, Callable[[], Any]]:
    """A decoder whose tiles are smaller than the frames of its first case, and what decodes them into chunks."""
    model = FAMILIES[request.param]
    studio, case = model.studio, model.cases[0]
    vae = studio.decoder.pipeline.vae
    if hasattr(vae, "tile_sample_min_height"):
        for side in ("height", "width"):
            monkeypatch.setattr(vae, f"tile_sample_min_{side}", 64 if model.name == "ltx" else 32)
            monkeypatch.setattr(vae, f"tile_sample_stride_{side}", 32 if model.name == "ltx" else 24)
    latents = studio.start(case).latents
    return studio.decoder, lambda: list(studio.decoder.decode(latents, case.spec))


def test_a_family_decodes_in_tiles_what_is_large_and_what_it_is_asked_to(
    decoding: tuple[Family, Callable[[], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, decode = decoding
    whole = np.concatenate(decode())
    quiet, asked = Recorder(2), Recorder(2)
    monkeypatch.setattr(decoder, "tokens", TileRunner(quiet))
    assert np.array_equal(np.concatenate(decode()), whole)
    assert quiet.ran == []
    monkeypatch.setattr(decoder, "tokens", TileRunner(asked, small=True))
    [tiled] = decode()
    [num_tiles] = asked.ran
    assert num_tiles > 1
    assert tiled.shape == whole.shape
    assert not np.array_equal(tiled, whole)
    for module in LIMITS:
        monkeypatch.setattr(module, "MAX_UNTILED_PIXELS", 1)
    monkeypatch.setattr(decoder, "tokens", None)
    assert np.array_equal(decode()[0], tiled)


def test_a_family_gives_no_frames_where_its_tiles_are_not_wanted(
    decoding: tuple[Family, Callable[[], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, decode = decoding
    silent = SimpleNamespace(concurrency=2, run=lambda forwards: [])
    monkeypatch.setattr(decoder, "tokens", TileRunner(silent, small=True))
    assert decode() == []
