"""The fit finds what made the samples, whatever noise they have, and never says that more work costs less."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydiance.serve.engine.cost_fit import ErrorStats, errors, fit, non_negative, quantile
from raydiance.serve.engine.cost_model import TERMS, CostModel, Sample, step_work
from raydiance.serve.engine.ways import Shape

SHAPES = [
    Shape(tokens, rows, branches) for tokens in (16, 64, 256, 1024, 4096) for rows in (1, 2, 8) for branches in (1, 2)
]
TRUTHS = st.fixed_dictionaries(
    {
        "work": st.floats(1e-6, 1e-4),
        "work_tokens": st.floats(1e-10, 1e-7),
        "forwards": st.floats(1e-4, 1e-2),
        "rows": st.floats(1e-5, 1e-3),
    }
)


def samples_of(model: CostModel, shapes: Sequence[Shape], noise: float = 0.0, seed: int = 0) -> list[Sample]:
    random = np.random.default_rng(seed)
    factors = 1 + noise * random.uniform(-1, 1, len(shapes))
    return [Sample("step", step_work(s), model.seconds(s) * f) for s, f in zip(shapes, factors, strict=True)]


@given(TRUTHS)
@settings(max_examples=40)
def test_parameters_are_found(truth: dict[str, float]) -> None:
    found = fit(samples_of(CostModel({"step": truth}), SHAPES))
    for shape in (Shape(100, 3, 2), Shape(2000, 5), Shape(16)):
        assert found.seconds(shape) == pytest.approx(CostModel({"step": truth}).seconds(shape), rel=1e-3)


@given(TRUTHS, st.integers(0, 1000))
@settings(max_examples=40)
def test_noise_is_averaged_out(truth: dict[str, float], seed: int) -> None:
    """Of 10% noise, less is left in what is predicted of sizes in between."""
    model = CostModel({"step": truth})
    found = fit(samples_of(model, SHAPES, noise=0.1, seed=seed))
    for shape in (Shape(100, 3, 2), Shape(600, 4), Shape(2000, 2, 2)):
        assert found.seconds(shape) == pytest.approx(model.seconds(shape), rel=0.1)


@given(st.lists(st.floats(1e-5, 10.0), min_size=len(SHAPES), max_size=len(SHAPES)))
@settings(max_examples=40)
def test_more_never_costs_less_whatever_was_measured(seconds: list[float]) -> None:
    model = fit([Sample("step", step_work(shape), s) for shape, s in zip(SHAPES, seconds, strict=True)])
    for shape in SHAPES:
        cost = model.seconds(shape)
        assert 0 <= cost < math.inf
        assert model.seconds(Shape(shape.num_tokens + 1, shape.num_rows, shape.num_branches)) >= cost
        assert model.seconds(Shape(shape.num_tokens, shape.num_rows + 1, shape.num_branches)) >= cost
        assert model.seconds(Shape(shape.num_tokens, shape.num_rows, 2)) >= cost or shape.num_branches == 2


@given(
    st.integers(1, 4).flatmap(
        lambda terms: st.tuples(
            st.lists(st.lists(st.floats(0.1, 10), min_size=terms, max_size=terms), min_size=terms, max_size=8),
            st.integers(0, 10_000),
        )
    )
)
@settings(max_examples=60)
def test_no_other_choice_is_better(case: tuple[list[list[float]], int]) -> None:
    """Beside random non-negative ones, and a small step in each direction."""
    rows, random = np.array(case[0]), np.random.default_rng(case[1])
    targets = random.uniform(-2, 2, len(rows))
    found = non_negative(rows, targets)
    assert (found >= 0).all()
    least = np.linalg.norm(rows @ found - targets)
    near = [np.clip(found + 1e-3 * random.normal(size=found.shape), 0, None) for _ in range(20)]
    for other in [*near, *random.exponential(1, (20, len(found)))]:
        assert least <= np.linalg.norm(rows @ other - targets) + 1e-6


def test_of_one_sample_costs_are_in_proportion() -> None:
    model = fit([Sample("step", step_work(Shape(100, 1, 2)), 0.5)])
    assert model.coefficients == {"step": {TERMS["step"][0]: pytest.approx(0.5 / 200)}}


def test_a_part_that_was_not_measured_is_not_known() -> None:
    model = fit([Sample("text", {"texts": 2, "calls": 1}, 0.2)])
    assert model.knows("text")
    assert not model.knows("step")
    with pytest.raises(ValueError, match="knows nothing of 'step'; it knows text"):
        model.seconds(Shape(1))


def test_errors_are_relative_to_what_was_observed() -> None:
    model = CostModel({"text": {"texts": 1.0}})
    found = errors(model, [Sample("text", {"texts": 1}, 2.0), Sample("text", {"texts": 3}, 2.0)])
    assert found == {"text": ErrorStats(2, pytest.approx(0.5), pytest.approx(0.5))}
    assert ErrorStats.of([]) == ErrorStats(0, 0.0, 0.0)


def test_quantiles() -> None:
    assert [quantile([3.0, 1.0, 2.0], q) for q in (0.0, 0.25, 0.5, 1.0)] == [1.0, 1.5, 2.0, 3.0]
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)
