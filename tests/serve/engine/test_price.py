"""What a step and a request cost, by formula, by what was measured on several ranks, and by what was seen since."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiance.models import registry
from raydiance.models.spec import Spec
from raydiance.models.tiny import CHECKPOINT
from raydiance.parallel.mesh import Layout
from raydiance.parallel.schedule import SCHEDULES
from raydiance.serve.engine.cost_model import CostModel, text_work
from raydiance.serve.engine.cost_residuals import LAST, RUN, Correction, Residuals
from raydiance.serve.engine.policies.base import Prices
from raydiance.serve.engine.price import Pricing
from raydiance.serve.engine.ways import ALONE, Costs, Limits, Shape, Way

CARD = registry.card(CHECKPOINT, "tiny")
MODEL = CostModel(
    {
        "step": {"work": 1e-4, "forwards": 1e-3},
        "denoise": {"rows": 0.01, "row_steps": 0.001},
        "text": {"texts": 0.1},
        "inputs": {"pixels": 1e-5},
        "decode": {"pixel_frames": 1e-6, "calls": 0.5},
        "video_file": {"frames": 0.01},
        "image_file": {"calls": 0.02},
    },
    inflation=0.25,
)
SPEC = Spec("tiny", "text-to-video", "a red circle", 32, 32, 9, 10, 2.0, 0)
SHAPE = Shape(48, 1, 2)
ALONE_S = 96 * 1e-4 + 2e-3


def test_the_price_of_a_video() -> None:
    price = Pricing(MODEL).price(SPEC, CARD)
    assert (price.num_steps, price.step_s) == (10, pytest.approx(ALONE_S))
    assert price.text_s == pytest.approx(0.2)  # with guidance there are two texts
    assert price.inputs_s == 0
    assert price.denoise_s == pytest.approx(10 * ALONE_S + 0.01 + 10 * 0.001)
    assert price.decode_s == pytest.approx(9 * 32 * 32 * 1e-6 + 0.5)
    assert price.file_s == pytest.approx(0.09)
    assert price.total_s == pytest.approx(0.2 + price.denoise_s + price.decode_s + 0.09)
    assert price.gpu_seconds == pytest.approx(price.total_s - price.file_s)


def test_the_price_of_an_image_that_starts_from_another() -> None:
    image = replace(SPEC, task="image-to-image", num_frames=1, strength=0.5, guidance_scale=1.0)
    price = Pricing(MODEL).price(image, CARD)
    assert price.num_steps == 5
    assert price.step_s == pytest.approx(16 * 1e-4 + 1e-3)
    assert (price.text_s, price.inputs_s) == (pytest.approx(0.1), pytest.approx(1024e-5))
    assert price.file_s == pytest.approx(0.02)


def test_a_batch_shares_its_steps_and_a_degree_multiplies_them() -> None:
    alone, batched = (Pricing(MODEL).price(SPEC, CARD, batch=batch) for batch in (1, 4))
    assert batched.step_s == pytest.approx(4 * 96 * 1e-4 + 2e-3)
    assert alone.gpu_seconds > batched.gpu_seconds
    assert batched.total_s > alone.total_s
    two = Pricing(MODEL).price(SPEC, CARD, degree=2)
    assert two.step_s == pytest.approx(ALONE_S / 2 * 1.25)
    assert two.gpu_seconds > alone.gpu_seconds


def test_references_are_tokens_too() -> None:
    alone, with_two = (Pricing(MODEL).price(SPEC, CARD, num_references=n) for n in (0, 2))
    assert with_two.step_s - alone.step_s == pytest.approx(2 * 96e-4)


def test_the_length_of_a_sequence_is_what_was_measured_of_it() -> None:
    longer = CostModel(dict(MODEL.coefficients) | {"tokens": {"tokens": 1.0, "calls": 20.0}})
    assert longer.num_tokens(SPEC, CARD) == 68
    assert MODEL.num_tokens(SPEC, replace(CARD, max_text_tokens=7)) == 55


def test_a_cache_leaves_a_share_of_the_work() -> None:
    assert MODEL.seconds(SHAPE, 1, 0.5) == pytest.approx(ALONE_S / 2)
    assert Pricing(MODEL).seconds(SHAPE, 1, 0.5) == pytest.approx(ALONE_S / 2)


def test_ways_that_were_measured_go_before_the_formula() -> None:
    costs = Costs(Limits(max_ulysses=2, ring=1, cfg=1))
    prices: Prices = Pricing(MODEL, costs)
    assert prices.seconds(SHAPE, 2) == pytest.approx(ALONE_S / 2 * 1.25)
    costs.record(SHAPE, Way(Layout(ulysses=2), SCHEDULES["synchronous"]), 0.5)
    assert Pricing(MODEL, costs).seconds(SHAPE, 2) == 0.5
    assert prices.seconds(SHAPE, 4) is None
    with pytest.raises(ValueError, match="no layout takes 48 tokens on 4 ranks"):
        Pricing(MODEL, costs).price(SPEC, CARD, degree=4)
    costs.record(SHAPE, ALONE, 3.0)
    assert prices.seconds(SHAPE, 1) == pytest.approx(ALONE_S)  # of one rank the formula is told through `observe`


@pytest.mark.parametrize("shapes", [[SHAPE], [SHAPE, Shape(768, 1, 2), Shape(16)]])
def test_a_slowdown_is_followed_and_forgotten(shapes: list[Shape]) -> None:
    pricing = Pricing(MODEL, last=10)
    other = Shape(300, 2, 2)
    for factor in (1.0, 3.0, 1.0):
        for i in range(10 * RUN):
            shape = shapes[i % len(shapes)]
            pricing.observe(shape, 1, factor * MODEL.seconds(shape))
        assert pricing.correction() == pytest.approx((factor, factor))
        assert pricing.seconds(other) == pytest.approx(factor * MODEL.seconds(other))
        assert pricing.error_stats("step").p95 <= 2.01


def test_half_of_the_observations_are_enough() -> None:
    pricing = Pricing(MODEL, q=0.8, last=20)
    for i in range(20):
        pricing.observe(Shape(48 + i), 1, MODEL.seconds(Shape(48 + i)))
    for i in range(10):
        pricing.observe(Shape(48 + i), 1, 2 * MODEL.seconds(Shape(48 + i)))
    assert pricing.correction() == Correction(pytest.approx(1.5), pytest.approx(2.0))


def test_one_hiccup_is_no_slowdown() -> None:
    pricing = Pricing(MODEL, q=0.6)
    pricing.observe(SHAPE, 1, 50 * ALONE_S)
    assert pricing.correction() == pytest.approx((1.0, 1.0))


def test_parts_and_degrees_are_corrected_apart() -> None:
    pricing = Pricing(MODEL)
    for i in range(4 * RUN):
        pricing.observe_part("text", text_work(1), 0.2)
        pricing.observe(Shape(48 + i), 2, 4 * MODEL.seconds(Shape(48 + i), 2))
        pricing.observe(Shape(48 + i), 1, 1.5 * MODEL.seconds(Shape(48 + i)))
    assert pricing.correction("text") == pytest.approx((2.0, 2.0))
    assert pricing.correction("decode") == (1.0, 1.0)
    assert pricing.correction("step", 2) == pytest.approx((4.0, 4.0))
    assert pricing.correction("step", 8) == pricing.correction("step") == pytest.approx((1.5, 1.5))
    assert pricing.price(SPEC, CARD).text_s == pytest.approx(0.4)


def test_corrections_are_told_to_those_who_see_nothing() -> None:
    denoiser, dispatcher = Pricing(MODEL), Pricing(MODEL)
    for i in range(LAST):
        denoiser.observe(Shape(48 + i), 1, 2 * MODEL.seconds(Shape(48 + i)))
    assert dispatcher.seconds(SHAPE) == pytest.approx(ALONE_S)
    dispatcher.tell(denoiser.corrections())
    assert dispatcher.seconds(SHAPE) == pytest.approx(2 * ALONE_S)
    assert dispatcher.price(SPEC, CARD).step_s == pytest.approx(2 * ALONE_S)


def test_what_is_not_known_is_not_observed() -> None:
    pricing = Pricing(CostModel({}))
    pricing.observe(SHAPE, 1, 1.0)
    pricing.observe_part("text", text_work(1), 1.0)
    assert pricing.error_stats().count == 0
    with pytest.raises(ValueError, match="knows nothing of 'step'"):
        pricing.price(SPEC, CARD)


def test_the_error_is_of_what_was_predicted_then() -> None:
    pricing = Pricing(MODEL, q=0.5)
    pricing.observe(SHAPE, 1, 2 * ALONE_S)
    pricing.observe_part("text", text_work(1), 0.1)
    assert pricing.error_stats("step").mean == pytest.approx(0.5)
    assert pricing.error_stats("text").mean == pytest.approx(0.0)
    assert pricing.error_stats().count == 2


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_time_is_not_observed(seconds: float) -> None:
    residuals = Residuals(0.5)
    residuals.observe("a", 1.0, seconds)
    residuals.observe("a", seconds, 1.0)
    assert (residuals.correction, residuals.count, residuals.errors) == (Correction(), 0, [])


@pytest.mark.parametrize(
    ("q", "last", "says"), [(1.1, 5, "quantile=1.1"), (0.4, 5, "quantile=0.4"), (0.5, 0, "last=0")]
)
def test_impossible_windows_are_refused(q: float, last: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Pricing(MODEL, q=q, last=last)


@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(1e-3, 1e3)), max_size=60))
def test_prices_stay_positive_and_grow_with_work(observed: list[tuple[int, float]]) -> None:
    pricing = Pricing(MODEL)
    for tokens, seconds in observed:
        pricing.observe(Shape(tokens), 1, seconds)
    costs = [pricing.seconds(Shape(tokens)) for tokens in (1, 10, 100, 1000)]
    assert all(cost is not None and cost > 0 for cost in costs)
    assert costs == sorted(costs)  # type: ignore[type-var]
