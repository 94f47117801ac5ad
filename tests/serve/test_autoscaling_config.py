"""What cannot be honoured together is refused with the option's name; what can reaches the policy."""

from __future__ import annotations

from typing import Any

import pytest

from raydiance.deploy.hours import Hours
from raydiance.deploy.scaling import Rules
from raydiance.serve import preflight
from raydiance.serve.config import ModelConfig, load_config
from raydiance.serve.errors import ConfigError
from raydiance.serve.stages.elastic import Elastic

HOURS = {"days": ["mon", "fri"], "start": "08:00", "end": "18:30", "spares": 2}
DENOISER = "autoscaling.denoiser"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({f"{DENOISER}.min_replicas": 3}, "autoscaling.denoiser: min_replicas needs max_replicas"),
        ({f"{DENOISER}.spares": 1}, "autoscaling.denoiser: spares needs max_replicas"),
        ({DENOISER: {"min_replicas": 4, "max_replicas": 3}}, "autoscaling.denoiser: min_replicas=4 is more than"),
        ({DENOISER: {"max_replicas": 3, "spares": 3}}, "autoscaling.denoiser: spares=3 leaves none of max_replicas=3"),
        (
            {DENOISER: {"max_replicas": 3, "min_replicas": 0, "spares": 1}},
            "autoscaling.denoiser: min_replicas=0 is never",
        ),
        ({DENOISER: {"max_replicas": 2, "schedule": [HOURS]}}, "autoscaling.denoiser: spares=2 leaves none"),
        ({DENOISER: {"max_replicas": 9, "schedule": [{**HOURS, "start": "8"}]}}, "autoscaling.denoiser.schedule"),
        (
            {f"{DENOISER}.max_replicas": 3, "denoiser.num_replicas": 2},
            "denoiser.num_replicas=2: autoscaling.denoiser.max_replicas scales it",
        ),
        (
            {"autoscaling.vae_decoder": {"min_replicas": 0, "max_replicas": 2}},
            "autoscaling: vae_decoder.min_replicas=0",
        ),
        (
            {"autoscaling.text_encoder": {"min_replicas": 0, "max_replicas": 2}},
            "autoscaling: text_encoder.min_replicas=0",
        ),
        ({"autoscaling.timezone": "Mars/Olympus"}, "autoscaling.timezone must be a name of the tz database"),
        ({"autoscaling.drain_s": 700}, "autoscaling: drain_s=700 is more than batch_drain_s=600"),
        ({"autoscaling.max_spend_per_hour": 5}, "autoscaling: max_spend_per_hour=5 needs cost_per_replica_hour"),
        (
            {DENOISER: {"max_replicas": 9, "cost_per_replica_hour": 3}, "autoscaling.max_spend_per_hour": 2},
            "autoscaling: max_spend_per_hour=2 is less than 3",
        ),
        (
            {
                DENOISER: {"max_replicas": 9, "cost_per_replica_hour": 3},
                "autoscaling.max_spend_per_hour": 5,
                "models": [{"path": "tiny"}, {"path": "tiny", "name": "other"}],
            },
            "autoscaling.max_spend_per_hour=5 is less than 6, which the fewest denoisers of 2 models cost",
        ),
    ],
)
def test_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(values)
    assert str(caught.value).startswith(says)


def test_off_unless_it_is_asked_for() -> None:
    config = load_config({})
    assert not config.autoscaling.is_on
    assert [config.most_replicas(stage) for stage in ("text_encoder", "denoiser", "vae_decoder")] == [1, 1, 1]
    assert elastic(config, ["m"]).options("Denoiser", "m") == {}


def test_more_than_the_machine_has_is_refused_with_the_option() -> None:
    config = load_config({"denoiser.num_gpus": 1, f"{DENOISER}.max_replicas": 4})
    with pytest.raises(ConfigError, match=r"autoscaling.denoiser.max_replicas=4: 4 GPUs are needed"):
        preflight.check_gpus(config, 2)
    preflight.check_gpus(config, 4)


def elastic(config: Any, ids: list[str]) -> Elastic:
    models = {id: ModelConfig(path="tiny", name=id) for id in ids}
    shared = dict.fromkeys(ids, models[ids[0]])
    return Elastic(config.autoscaling, shared, models, models)


def test_the_policy_is_given_every_rule_and_whose_work_it_is() -> None:
    config = load_config(
        {
            DENOISER: {"min_replicas": 0, "max_replicas": 8, "cost_per_replica_hour": 2.5, "schedule": [HOURS]},
            "autoscaling.text_encoder": {"max_replicas": 2, "cost_per_replica_hour": 0.5},
            "autoscaling.max_spend_per_hour": 12,
            "autoscaling.idle_s": 33,
        }
    )
    made = elastic(config, ["a", "b"])
    for cls in ("Denoiser", "GuestDenoiser", "SimulatedDenoiser"):
        options = made.options(cls, "b")["autoscaling_config"]
        assert (options.min_replicas, options.initial_replicas, options.max_replicas) == (0, 1, 8)
        given = options.policy.policy_kwargs
        assert (given["stage"], given["models"], given["reserved"]) == ("denoiser", ["b"], 3.0)
    hours = Hours(("mon", "fri"), 8 * 60, 18 * 60 + 30, 2)
    assert Hours(**{**given["rules"]["schedule"][0], "days": ("mon", "fri")}) == hours
    rules = Rules(**{**given["rules"], "schedule": (hours,)})
    assert (rules.cost_per_hour, rules.max_spend_per_hour, rules.idle_s) == (2.5, 12.0, 33.0)
    assert set(given["rules"]) == set(Rules.__dataclass_fields__)
    shared = made.options("TextEncoder", "a")["autoscaling_config"].policy.policy_kwargs
    assert (shared["models"], shared["reserved"]) == (["a", "b"], 5.0)
    assert made.options("VAEDecoder", "a") == {}
    assert config.most_replicas("denoiser") == 4  # by the cap


def test_what_rules_are_without_an_option_is_what_options_are() -> None:
    config = load_config({f"{DENOISER}.max_replicas": 1})
    rules = elastic(config, ["m"]).options("Denoiser", "m")["autoscaling_config"].policy.policy_kwargs["rules"]
    assert Rules(**{**rules, "schedule": ()}) == Rules()
