"""How a checkpoint goes onto cards of one size: a pure function of what its stages need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydiance.models.options import Offload

if TYPE_CHECKING:
    from raydiance.models.checkup import Checkup

HEADROOM = 0.92
"""Share of a card that is planned with; the rest is the driver's, the allocator's and the kernels'."""
DEGREES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Fit:
    """Args:
    gpus: for one replica of each stage.
    degree: GPUs that the denoiser's sequence is split over; each holds all its weights.
    offload: see `LoadOptions.offload`; `group` is for the encoders too.
    placement: stage to the first of its GPUs, counted from 0.
    peak_bytes: on the fullest card.
    """

    gpus: int
    degree: int
    offload: Offload
    placement: Mapping[str, int]
    peak_bytes: int


def fit(checkup: Checkup, card_bytes: int) -> Fit | None:
    """The cheapest way, or None: weights resident before off-loaded, then the fewest GPUs, then the lowest degree.

    Args:
        card_bytes: memory of one GPU.
    """
    usable = int(card_bytes * HEADROOM)
    offloads: tuple[Offload, ...] = ("none", "idle_expert", "group")
    ways = []
    for rank, offload in enumerate(offloads):
        others = [_encode_bytes(checkup, offload), checkup.needs("decode").memory_bytes]
        for degree in DEGREES:
            denoise = denoise_bytes(checkup, offload, degree)
            if denoise is not None and (bins := _pack(denoise, others, usable)) is not None:
                placement = {"denoise": 0, **dict(zip(("encode", "decode"), bins.places, strict=True))}
                placement |= {s: i + degree - 1 for s, i in placement.items() if i > 0}
                ways.append((rank, Fit(degree + bins.added, degree, offload, placement, bins.fullest)))
    return min(ways, key=lambda way: (way[0], way[1].gpus, way[1].degree), default=(0, None))[1]


def denoise_bytes(checkup: Checkup, offload: Offload, degree: int) -> int | None:
    """What one of a denoiser's cards holds; None where the checkpoint has nothing to off-load that way."""
    experts = [c for c in checkup.components if c.stage == "denoise"]
    activations = -(-checkup.needs("denoise").peak_bytes // degree)
    weights = sum(c.weight_bytes for c in experts)
    if offload == "idle_expert":
        if len(experts) < 2:
            return None
        weights = max(c.weight_bytes for c in experts)
    if offload == "group":
        weights = max(c.group_bytes for c in experts)
    return weights + activations


def _encode_bytes(checkup: Checkup, offload: Offload) -> int:
    if offload != "group":
        return checkup.needs("encode").memory_bytes
    groups = sum(c.group_bytes for c in checkup.components if c.stage == "encode")
    return groups + checkup.needs("encode").peak_bytes


@dataclass(frozen=True, slots=True)
class _Bins:
    places: tuple[int, ...]
    added: int
    fullest: int


def _pack(first: int, others: list[int], usable: int) -> _Bins | None:
    """First fit: each of the others onto the first card with room, the denoiser's own among them."""
    cards, places = [first], []
    for size in others:
        place = next((i for i, used in enumerate(cards) if used + size <= usable), len(cards))
        if place == len(cards):
            cards.append(0)
        cards[place] += size
        places.append(place)
    return _Bins(tuple(places), len(cards) - 1, max(cards)) if max(cards) <= usable else None
