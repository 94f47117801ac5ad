"""Profiles: their numbers are computed, their configurations can be served, and they agree with what is published."""

from __future__ import annotations

import pytest
import yaml

from raydiance.deploy import profile
from raydiance.deploy.check import check
from raydiance.models.fit import fit
from raydiance.models.resolve import CheckpointError

NAMES = profile.names()
QUICK = ("flux.1-schnell", "hidream-i1-full", "wan2.1-vace-1.3b", "ltx-2.3-distilled")
# parameters as their makers give them: billions
PUBLISHED = {
    "flux.1-dev": {"transformer": 12, "text_encoder_2": 4.7},
    "hidream-i1-full": {"transformer": 17, "text_encoder_4": 8},
    "wan2.2-t2v-a14b": {"transformer": 14, "transformer_2": 14},
    "wan2.2-ti2v-5b": {"transformer": 5},
    "wan2.1-vace-14b": {"transformer": 17},
    "ltx-2.3": {"transformer": 19, "text_encoder": 12},
}


def test_every_checkpoint_of_the_families_has_one():
    assert {profile.load(name).card().family for name in NAMES} == {"flux", "hidream", "wan", "ltx"}
    assert len(NAMES) == 14


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
def test_the_numbers_are_those_that_are_computed(name):
    """Change source.yaml or raydiance.json, then run `python -m raydiance.deploy.profile`."""
    known = profile.load(name)
    assert (known.folder / "profile.yaml").read_text() == profile.text(profile.compute(known))


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_many_as_published(name):
    parts = yaml.safe_load((profile.ROOT / name / "profile.yaml").read_text())["components"]
    for part, billions in PUBLISHED[name].items():
        assert parts[part]["parameters_billion"] == pytest.approx(billions, rel=0.05), part


@pytest.mark.parametrize("name", ["flux.1-dev", "wan2.2-t2v-a14b"])
@pytest.mark.slow
def test_a_profile_gives_a_configuration(name):
    known = profile.load(name)
    checkup = known.examine()
    way = fit(checkup, 48 * profile.GIB)
    config = known.config(way)
    [model] = config.models
    assert (model.path, model.id, model.offload) == (known.hub_id, name, way.offload)
    assert known.card().with_defaults(model.defaults) == known.card()
    shares = [config.text_encoder.num_gpus, config.denoiser.num_gpus, config.vae_decoder.num_gpus]
    assert sum(shares) == pytest.approx(way.gpus, abs=0.02)


def test_another_size_takes_more():
    small, large = check("flux.1-schnell", size=(512, 512)), check("flux.1-schnell", size=(1024, 1024))
    assert small.checkup.needs("denoise").flops < large.checkup.needs("denoise").flops / 3
    assert small.checkup.needs("denoise").weight_bytes == large.checkup.needs("denoise").weight_bytes


def test_an_unknown_profile_names_those_that_there_are():
    with pytest.raises(CheckpointError, match=r"no profile 'flux'; there is flux\.1-dev"):
        profile.load("flux")
