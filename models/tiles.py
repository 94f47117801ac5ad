"""Decoding latents in overlapping tiles: which there are, each one's decoding as a call of its own, and their seams.

Where the latents are cut and how tiles fade into each other is diffusers' `tiled_decode`, whose pixels this gives; each
call is independent of the others, so that what is outside may run them where it likes.

Shape letters: H W rows and columns of the latents, h w of the pixels; what is before them is all one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from raydiance.models.tokens import Forward, Tokens, Whole

Run = Callable[[Sequence[Forward]], list[torch.Tensor]]
"""What each forward returns, in their order; nothing at all where the results are not wanted here. `Family.run`."""
Window = tuple[slice, slice]


@dataclass(frozen=True, slots=True)
class Tiling:
    """Args:
    size: rows and columns of a tile's latents; those at the end have fewer.
    stride: from one tile to the next, in latents; the rest of a tile is what it shares with the next.
    scale: pixels a latent along either side.
    fewest: rows or columns that can be decoded. What is shorter at the end is left to the tile before, which holds it.

    Raises ValueError where tiles leave gaps, or never get on.
    """

    size: tuple[int, int]
    stride: tuple[int, int]
    scale: int
    fewest: int = 1

    def __post_init__(self) -> None:
        for size, stride in zip(self.size, self.stride, strict=True):
            longest = size - self.fewest + 1
            if not 0 < stride <= longest:
                raise ValueError(f"tiles of {size} latents, {stride} apart: the stride must be from 1 to {longest}")

    @property
    def overlap(self) -> tuple[int, int]:
        """In pixels."""
        rows, cols = ((size - stride) * self.scale for size, stride in zip(self.size, self.stride, strict=True))
        return rows, cols

    def splits(self, height: int, width: int) -> bool:
        """Whether latents of this size are more than one tile."""
        return height > self.size[0] or width > self.size[1]

    def grid(self, height: int, width: int) -> list[list[Window]]:
        """[row of tiles][column of tiles]. What one tile holds along one side is cut there too once the other is."""
        if not self.splits(height, width):
            return [[(slice(0, height), slice(0, width))]]
        rows, cols = (
            [
                slice(start, min(start + size, length))
                for start in range(0, length, stride)
                if start == 0 or length - start >= self.fewest
            ]
            for length, size, stride in zip((height, width), self.size, self.stride, strict=True)
        )
        return [[(row, col) for col in cols] for row in rows]


class TileRunner(Whole):
    """What a decoder is given as its `tokens`: no attention, but something that runs the tiles' decodings.

    Args:
        runner: such as `parallel`'s `Spread`.
        small: decode in tiles also what is below the size from which the family has to, where several forwards can
            be under way at once. It is off unless asked for: seams change pixels slightly, so that one request would
            no longer give the same pixels on one rank as on many. And tiles overlap: of Wan's 256-pixel tiles, 192
            pixels apart, 1.78 times as many pixels are decoded.
    """

    def __init__(self, runner: Runner, *, small: bool = False) -> None:
        super().__init__(_no_attention)
        self.runner = runner
        self.small = small
        self.concurrency = runner.concurrency

    def run(self, forwards: Sequence[Forward]) -> list[torch.Tensor]:
        return self.runner.run(forwards)


class Runner(Protocol):
    @property
    def concurrency(self) -> int: ...

    def run(self, forwards: Sequence[Forward], /) -> list[torch.Tensor]: ...


def _no_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    raise TypeError("a TileRunner is for decoders, whose attention is their own")


def wants_tiles(tokens: Tokens | None, tiling: Tiling, latents: torch.Tensor, is_large: bool) -> bool:
    """Whether latents [..., H, W] are to be decoded in tiles.

    Args:
        is_large: whether memory asks for it.
    """
    small = isinstance(tokens, TileRunner) and tokens.small and tokens.concurrency > 1
    return (is_large or small) and tiling.splits(*latents.shape[-2:])


def decode_in_tiles(
    latents: torch.Tensor, tiling: Tiling, forward: Callable[[torch.Tensor], Forward], run: Run
) -> torch.Tensor | None:
    """[..., H, W] -> [..., h, w]; None where `run` gives nothing: the tiles are not wanted on this rank.

    Args:
        forward: the decoding of one tile's latents.
    """
    grid = tiling.grid(*latents.shape[-2:])
    windows = [window for row in grid for window in row]
    forwards = [forward(latents[..., rows, cols]) for rows, cols in windows]
    # the large ones first: dealt out in turn, no rank gets all of the narrow ones at the edge
    order = sorted(range(len(forwards)), key=lambda i: -torch.Size(forwards[i].shape).numel())
    made = run([forwards[i] for i in order])
    if not made:
        return None
    tiles = dict(zip(order, made, strict=True))
    width = len(grid[0])
    return _join([[tiles[row * width + col] for col in range(width)] for row in range(len(grid))], tiling, grid)


def _join(tiles: list[list[torch.Tensor]], tiling: Tiling, grid: list[list[Window]]) -> torch.Tensor:
    """Fades each tile into the ones above and before it, in place, and puts what is before the next ones together."""
    down, across = tiling.overlap
    rows, cols = _kept([row[0][0] for row in grid], tiling.scale), _kept([col for _, col in grid[0]], tiling.scale)
    lines = []
    for i, row in enumerate(tiles):
        for j, tile in enumerate(row):
            if i > 0:
                _fade(tiles[i - 1][j], tile, -2, down)
            if j > 0:
                _fade(row[j - 1], tile, -1, across)
        lines.append(torch.cat([tile[..., : rows[i], : cols[j]] for j, tile in enumerate(row)], dim=-1))
    return torch.cat(lines, dim=-2)


def _kept(spans: list[slice], scale: int) -> list[int]:
    """How many pixels of each tile are before the next one begins."""
    ends = [*(span.start for span in spans[1:]), spans[-1].stop]
    return [(end - span.start) * scale for span, end in zip(spans, ends, strict=True)]


def _fade(before: torch.Tensor, tile: torch.Tensor, dim: int, extent: int) -> None:
    """From all of `before` to all of `tile` over `extent` pixels, with diffusers' weights and its rounding."""
    extent = min(before.shape[dim], tile.shape[dim], extent)
    weights = [step / extent for step in range(extent)]
    shape = (extent, *(1,) * (-1 - dim))
    rising = torch.tensor(weights, dtype=torch.float32, device=tile.device).view(shape)
    falling = torch.tensor([1 - w for w in weights], dtype=torch.float32, device=tile.device).view(shape)
    first, last = tile.narrow(dim, 0, extent), before.narrow(dim, before.shape[dim] - extent, extent)
    first.copy_((last * falling).type_as(tile) + (first * rising).type_as(tile))
