"""The section `parallel`: what it refuses by itself, against a model, and how ranks are placed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raydiance.models import registry, resolve
from raydiance.models.card import ModelCard
from raydiance.serve.config import DenoiserConfig, ModelConfig, load_config
from raydiance.serve.errors import ConfigError
from raydiance.serve.layout_check import check_layout, is_guided, limits_of
from raydiance.serve.parallel_config import ParallelConfig
from raydiance.serve.preflight import check_gpus, check_model
from raydiance.serve.stages.placement import placement
from raydiance.serve.stages.rank_group import in_node_order


@pytest.fixture(scope="module")
def card() -> ModelCard:
    return registry.card(resolve.resolve("tiny"), "tiny")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"gpus": 3}, "gpus=3 must be a power of two"),
        ({"gpus": 4, "ring": 3}, "ring=3 must be a power of two"),
        ({"gpus": 2, "nodes": 4}, "nodes=4 is more than gpus=2"),
        ({"gpus": 1, "cfg": 2}, "cfg=2 needs gpus of 2 or more"),
        ({"schedule": "halves"}, "schedule=halves needs gpus of 2 or more"),
        ({"gpus": 2, "cfg": 3}, "parallel.cfg"),
        ({"gpus": 2, "schedule": "fast"}, "parallel.schedule"),
        ({"gpus": 2, "ulysses": 2}, "parallel.ulysses"),
    ],
)
def test_what_no_model_can_do_is_refused_by_its_name(values: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_config({f"parallel.{name}": value for name, value in values.items()})


def test_a_models_own_section_replaces_the_one_of_all() -> None:
    config = load_config(
        {"models": [{"path": "tiny"}, {"path": "tiny", "name": "b", "parallel": {"gpus": 4}}], "parallel.gpus": 2}
    )
    assert [config.parallel_of(m).gpus for m in config.models] == [2, 4]


def test_options_of_the_command_line_are_strings() -> None:
    given = {"gpus": "4", "ring": "2", "cfg": "2", "max_ulysses": "2", "schedule": "lanes"}
    parallel = load_config({f"parallel.{name}": value for name, value in given.items()}).parallel
    assert (parallel.gpus, parallel.ring, parallel.cfg, parallel.max_ulysses) == (4, 2, 2, 2)


def test_layouts_that_are_possible(card: ModelCard) -> None:
    assert card.num_heads > 1
    for values in ({}, {"gpus": 2}, {"gpus": 4}, {"gpus": 2, "ring": 2}, {"gpus": 4, "cfg": 2}, {"gpus": 2, "cfg": 1}):
        check_layout(ParallelConfig(**values), card)
    assert limits_of(ParallelConfig(gpus=8, nodes=2), card).ranks_per_node == 4
    assert limits_of(ParallelConfig(gpus=2), replace(card, num_heads=24)).max_ulysses == 16


def test_layouts_that_are_not_are_refused_with_the_numbers(card: ModelCard) -> None:
    card = replace(card, num_heads=4)
    assert is_guided(card)
    cases = (
        (ParallelConfig(gpus=8, max_ulysses=8), "max_ulysses=8 is more than the 4 heads"),
        (
            ParallelConfig(gpus=16, ring=1),
            r"takes 16 ranks: cfg auto, ring 1, ulysses up to 4 \(4 heads, 16 ranks a node",
        ),
        (ParallelConfig(gpus=2, ring=2, cfg=2), "takes 2 ranks: cfg 2, ring 2"),
        (ParallelConfig(gpus=2, ring=4), "parallel.ring=4 is more than parallel.gpus=2"),
        (ParallelConfig(gpus=8, nodes=4, ring=1), r"ulysses up to 2 \(4 heads, 2 ranks a node\)"),
    )
    for parallel, says in cases:
        with pytest.raises(ConfigError, match=says):
            check_layout(parallel, card)
    small = replace(card, defaults=replace(card.defaults, height=16, width=16, num_frames=1), size_multiple=16)
    tokens = small.num_tokens(16, 16, 1)
    with pytest.raises(ConfigError, match=rf"16x16 with 1 frames is {tokens} tokens, too few"):
        check_layout(ParallelConfig(gpus=64, max_ulysses=4), small)
    unguided = replace(card, defaults=replace(card.defaults, guidance_scale=1.0))
    with pytest.raises(ConfigError, match="cfg=2: requests of model 'tiny' have no second branch"):
        check_layout(ParallelConfig(gpus=2, cfg=2), unguided)
    with pytest.raises(ConfigError, match="run by diffusers' own pipeline, on one GPU"):
        check_layout(ParallelConfig(gpus=2), replace(card, is_guest=True))


def test_it_is_checked_before_a_start() -> None:
    with pytest.raises(ConfigError, match="max_ulysses=64 is more than the"):
        check_model(ModelConfig(), ParallelConfig(gpus=64, max_ulysses=64))
    with pytest.raises(ConfigError, match=r"parallel.gpus=2: 2 GPUs are needed for all replicas, this machine has 1"):
        check_gpus(load_config({"parallel.gpus": 2}), 1)
    check_gpus(load_config({"parallel.gpus": 2, "parallel.device": "cpu"}), 0)
    with pytest.raises(ConfigError, match="4 GPUs are needed"):
        check_gpus(load_config({"parallel.gpus": 2, "parallel.device": "cpu", "denoiser.num_gpus": 1,
                                "denoiser.num_replicas": 2}), 3)  # fmt: skip


def test_where_ranks_are_placed() -> None:
    assert "placement_group_bundles" not in placement(DenoiserConfig(num_gpus=1), ParallelConfig())
    options = placement(DenoiserConfig(num_cpus=0.5), ParallelConfig(gpus=2))
    assert options["placement_group_bundles"] == [{"CPU": 0.5}, {"CPU": 0.1, "GPU": 1.0}, {"CPU": 0.1, "GPU": 1.0}]
    assert options["placement_group_strategy"] == "STRICT_PACK"
    assert placement(DenoiserConfig(), ParallelConfig(gpus=4, nodes=2))["placement_group_strategy"] == "PACK"
    on_cpu = placement(DenoiserConfig(), ParallelConfig(gpus=2, device="cpu"))
    assert on_cpu["placement_group_bundles"][1:] == [{"CPU": 0.1}] * 2


def test_ranks_of_a_node_are_neighbours() -> None:
    assert in_node_order(["x", "y", "x", "y"], 2) == [0, 2, 1, 3]
    assert in_node_order(["x", "x"], 2) == [0, 1]
    with pytest.raises(ConfigError, match=r"nodes=2: 4 ranks lie on nodes with \[3, 1\]"):
        in_node_order(["x", "x", "y", "x"], 2)
    with pytest.raises(ConfigError, match=r"nodes=1: 2 ranks lie on nodes with \[1, 1\]"):
        in_node_order(["x", "y"], 1)
