"""How stages go onto cards: pure, on made-up needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiance.models import registry
from raydiance.models.checkup import Checkup, Component
from raydiance.models.fit import HEADROOM, denoise_bytes, fit
from raydiance.models.footprint import Cost
from raydiance.models.tiny import CHECKPOINT
from raydiance.serve.samples import default_spec

GB = 10**9
CARD = registry.card(CHECKPOINT, "m")


def checkup(encode: float, experts: list[float], activations: float, decode: float, group: float = 1.0) -> Checkup:
    def part(name: str, stage: str, weights: float, peak: float) -> Component:
        size = int(weights * GB)
        return Component(name, "Any", stage, size // 2, size, min(size, int(group * GB)), Cost(1, int(peak * GB)))

    parts = [part("text_encoder", "encode", encode, 0), part("vae", "decode", 0, decode)]
    parts += [part(f"transformer_{i}", "denoise", w, activations) for i, w in enumerate(experts)]
    return Checkup(CARD, default_spec(CARD, 4), tuple(parts), tokens=100, rows=4, batch=1)


@pytest.mark.parametrize(
    ("needs", "card_gb", "expected"),
    [
        (checkup(5, [10], 2, 3), 24, (1, 1, "none")),
        (checkup(15, [15], 2, 3), 24, (2, 1, "none")),  # the encoder goes onto a card of its own
        (checkup(5, [20], 8, 3), 25, (3, 2, "none")),  # only the activations are split
        (checkup(5, [18, 18], 2, 1), 24, (2, 1, "idle_expert")),
        (checkup(5, [100], 2, 1), 24, (1, 1, "group")),
        (checkup(100, [100], 2, 1), 24, (1, 1, "group")),
    ],
)
def test_the_cheapest_way_is_found(needs, card_gb, expected):
    way = fit(needs, int(card_gb * GB / HEADROOM) + 1)
    assert (way.gpus, way.degree, way.offload) == expected
    assert way.placement["denoise"] == 0
    assert max(way.placement.values()) == 0 or max(way.placement.values()) >= way.degree


def test_what_fits_nowhere_is_none():
    assert fit(checkup(1, [10], 1000, 1), 24 * GB) is None
    assert fit(checkup(1, [10], 1, 1000), 24 * GB) is None


def test_one_expert_has_none_that_is_idle():
    assert denoise_bytes(checkup(1, [10], 1, 1), "idle_expert", 1) is None


@given(
    encode=st.floats(0.1, 50),
    experts=st.lists(st.floats(0.1, 60), min_size=1, max_size=2),
    activations=st.floats(0.1, 60),
    decode=st.floats(0.1, 20),
    card_gb=st.integers(8, 200),
)
def test_a_way_never_overfills_a_card(encode, experts, activations, decode, card_gb):
    needs = checkup(encode, experts, activations, decode)
    way = fit(needs, card_gb * GB)
    if way is None:
        return
    assert way.peak_bytes <= card_gb * GB * HEADROOM
    assert way.degree <= way.gpus <= way.degree + 2
    more = fit(needs, 2 * card_gb * GB)
    assert more is not None
    assert ("none", "idle_expert", "group").index(more.offload) <= ("none", "idle_expert", "group").index(way.offload)
