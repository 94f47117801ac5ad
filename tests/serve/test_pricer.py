"""What a job takes beside its stages."""

from __future__ import annotations

import pytest

from raydiance.models.card import Defaults, ModelCard
from raydiance.serve.engine.cost_model import CostModel
from raydiance.serve.engine.cost_residuals import LAST
from raydiance.serve.pricer import Pricer


@pytest.fixture
def pricer() -> Pricer:
    defaults = Defaults(height=64, width=64, num_frames=1, fps=8, num_inference_steps=4, guidance_scale=4.0)
    card = ModelCard(
        id="tiny",
        family="tiny",
        tasks=("text-to-image",),
        defaults=defaults,
        size_multiple=16,
        frame_stride=4,
        spatial_factor=8,
        temporal_factor=4,
        patch=(1, 2, 2),
        max_side=1024,
        created=1_750_000_000,
    )
    return Pricer(card, CostModel({"step": {"rows": 0.1}}))


def test_the_overhead_is_what_the_stages_do_not_tell_of_a_job_that_did_not_wait(pricer: Pricer) -> None:
    assert pricer.overhead_s == 0
    for waited_s in (2.0, 0.0, 5.0):
        pricer.observe_job({"encode_s": 0.1, "denoise_s": 1.0, "decode_s": 0.2, "total_s": 1.5 + waited_s})
    assert pricer.overhead_s == pytest.approx(0.2)


def test_only_the_last_jobs_count(pricer: Pricer) -> None:
    pricer.observe_job({"denoise_s": 1.0, "total_s": 1.1})
    for _ in range(LAST):
        pricer.observe_job({"denoise_s": 1.0, "total_s": 1.3})
    assert pricer.overhead_s == pytest.approx(0.3)


def test_samples_that_overlap_leave_none(pricer: Pricer) -> None:
    pricer.observe_job({"denoise_s": 1.0, "decode_s": 0.5, "total_s": 1.2})
    assert pricer.overhead_s == 0
