"""The overlap benchmark's rows and arms: their formulas against a count, and that their outputs can tell."""

from __future__ import annotations

import pytest
import torch
from overlap_arms import Arm, all_arms, output_of, register
from overlap_models import FP32_BYTES, HEADS, ROWS, WIDTH, Row

EVERY_ROW = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())


@pytest.mark.parametrize("world", [2, 4])
@EVERY_ROW
def test_the_bytes_of_ulysses_are_those_that_go_to_others(row: Row, world: int) -> None:
    head = FP32_BYTES * WIDTH // HEADS
    tokens = row.num_tokens // world
    to_one = 3 * tokens * (HEADS // world) * head + tokens * (HEADS // world) * head  # q, k and v; then out
    joined = FP32_BYTES * row.num_output_tokens // world * 64
    counted = row.num_forwards * sum(row.num_attentions * to_one + joined for _ in range(world - 1))
    assert row.sequence_bytes(world) == counted


@pytest.mark.parametrize("row", [ROWS["wan-pair"], ROWS["flux"]], ids=["wan-pair", "flux"])
def test_outputs_differ_by_forward_and_by_variant(row: Row) -> None:
    """Otherwise an arm that swaps two, or shows what it had before, would pass."""
    model = row.model()
    with torch.no_grad():
        outputs = [output_of(model, inputs) for seed in (0, 1) for inputs in row.inputs(seed)]
    assert len(outputs) == 2 * row.num_forwards
    for i, one in enumerate(outputs):
        assert one.std() > 0.1
        assert all((one - other).abs().max() > 0.01 for other in outputs[:i])


def test_a_guidance_pair_is_one_state_with_two_prompts() -> None:
    first, second = ROWS["wan-pair"].inputs(0)
    same = [name for name in first if torch.equal(first[name], second[name])]
    assert same == ["hidden_states", "timestep"]


def test_two_requests_have_nothing_in_common() -> None:
    first, second = ROWS["wan-two"].inputs(0)
    assert not any(torch.equal(first[name], second[name]) for name in first)


@EVERY_ROW
def test_weights_are_the_same_every_time(row: Row) -> None:
    first, second = row.model().state_dict(), row.model().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_attention_is_over_at_least_1280_tokens_that_divide() -> None:
    for row in ROWS.values():
        assert row.num_tokens >= 1280
        assert row.num_tokens % 4 == row.num_output_tokens % 4 == HEADS % 4 == 0


def test_which_arms_of_others_take_which_row() -> None:
    arms = all_arms()

    def names(row: str, world: int) -> set[str]:
        taking = (name for name, arm in arms.items() if arm.takes(ROWS[row], world))
        return {name for name in taking if not name.startswith("ours")}

    everywhere = {"diffusers", "compute alone", "communication alone", "one request a rank"}
    cfg = {"one branch a rank", "cfg: compute alone", "cfg: communication alone"}
    assert names("wan-free", 2) == names("wan-two", 2) == names("wan-pair", 4) == everywhere
    assert names("wan-pair", 2) == everywhere | cfg
    assert names("flux", 4) == everywhere | {"cache-dit"}


def test_what_changes_the_classes_of_others_has_a_process_of_its_own() -> None:
    arms = all_arms()
    assert [name for name, arm in arms.items() if arm.process == arms["cache-dit"].process] == ["cache-dit"]


def test_a_name_is_given_once() -> None:
    all_arms()
    with pytest.raises(ValueError, match="two arms 'diffusers'"):
        register(Arm("diffusers", "sequence", lambda _setting: lambda _forwards: []))
