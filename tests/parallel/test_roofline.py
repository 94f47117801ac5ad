"""The roofline's arithmetic, against figures counted elsewhere; and what the page says of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.parallel.cases import Case

from raydiance.parallel import roofline
from raydiance.parallel.mesh import Layout, Mesh, Subgroup
from raydiance.parallel.roofline import ACHIEVED_FLOPS, ACHIEVED_LINK, DEGREES, MACHINES, MODELS, Machine, Step

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "roofline.md").read_text()
WAN_720P, WAN_480P, FLUX = MODELS
NVLINK, NODES, PCIE_5, PCIE_4, ETHERNET = MACHINES


@pytest.mark.parametrize(("model", "profile"), [(WAN_720P, "wan2.2-t2v-a14b"), (FLUX, "flux.1-dev")])
def test_flops_are_those_counted_operation_by_operation(model: roofline.Model, profile: str) -> None:
    counted = yaml.safe_load((ROOT / "deploy/profiles" / profile / "profile.yaml").read_text())["request"]
    assert model.tokens == counted["tokens"]
    assert model.forward_flops == pytest.approx(counted["tflop"]["denoise"] / counted["rows"] * 1e12, rel=0.001)


@pytest.mark.parametrize(("model", "profile"), [(WAN_480P, "wan2.2-t2v-a14b"), (FLUX, "flux.1-dev")])
def test_shapes_are_those_of_the_checkpoints(model: roofline.Model, profile: str) -> None:
    config = json.loads((ROOT / "deploy/profiles" / profile / "transformer/config.json").read_text())
    assert model.width == config["num_attention_heads"] * config["attention_head_dim"]
    assert model.num_layers == config["num_layers"] + config.get("num_single_layers", 0)


@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("axis", ["ulysses", "ring"])
def test_bytes_are_those_that_real_ranks_send(axis: str, degree: int) -> None:
    """`Case.bytes_sent` is compared with the counters of real ranks; it has a batch of two."""
    heads, width = 8, 8
    tokens = 8 * degree
    case = Case(Mesh(Subgroup(0, degree), Layout(**{axis: degree})), (8,) * degree, heads)
    model = roofline.Model("", 3, tokens, heads * width, 0, 0, 1, 0)
    said = model.ulysses_bytes(degree) if axis == "ulysses" else model.ring_bytes(degree)
    sent = case.bytes_sent(0) * 3 * roofline.ELEMENT_BYTES / case.dtype.itemsize / 2
    assert said == sent


def test_a_step_is_worked_out_by_hand() -> None:
    model = roofline.Model("", 2, 100, 10, 1000, 5, 2, 70)
    assert model.forward_flops == 2 * (2 * 100 * 1000 + 4 * 100 * 100 * 10 + 4 * 100 * 5 * 10 + 4 * 5 * 10 * 10)
    machine = Machine("", 1e-9 / ACHIEVED_FLOPS, 1e-6 / ACHIEVED_LINK)  # 1,000 FLOP/s and bytes/s
    compute_s = 2 * model.forward_flops / 4 / 1000
    sent = {roofline.ulysses: 2 * 2 * 100 * 10 * 4 * 3 / 16, roofline.ring: 2 * 2 * 100 * 10 * 2 * 3 / 4}
    sent[roofline.cfg] = 2 * 100 * 10 * 4 * 1 / 4 + 70
    for layout, elements in sent.items():
        step = layout(model, machine, 4)
        assert (step.compute_s, step.exchange_s) == pytest.approx((compute_s, 2 * elements / 1000))


def test_the_gain_is_the_sum_over_the_longer_one() -> None:
    assert Step(3.0, 1.0).gain == pytest.approx(4 / 3)
    assert Step(1.0, 3.0).gain == pytest.approx(4 / 3)
    assert Step(2.0, 2.0).gain == 2.0


def test_a_model_without_guidance_has_no_cfg() -> None:
    with pytest.raises(ValueError, match="1 branches on 4 ranks are no guidance pair"):
        roofline.cfg(FLUX, NVLINK, 4)
    with pytest.raises(ValueError, match="2 branches on 3 ranks"):
        roofline.cfg(WAN_480P, NVLINK, 3)


def test_the_page_shows_what_is_printed() -> None:
    shown = PAGE.split("<!-- roofline: begin -->\n")[1].split("\n<!-- roofline: end -->")[0]
    command = [sys.executable, "-m", "raydiance.parallel.roofline"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == shown + "\n"


def test_the_page_claims_what_the_tables_say() -> None:
    said = " ".join(PAGE.split())
    wans = (WAN_720P, WAN_480P)
    nvlink = [roofline.ulysses(m, NVLINK, 8).gain for m in wans]
    assert f"at most {min(nvlink):.2f} to {max(nvlink):.2f}x for a 14B video model on 8 GPUs with NVLink" in said
    slow = [roofline.ulysses(m, machine, n).gain for m in wans for machine in (NODES, PCIE_5, PCIE_4) for n in DEGREES]
    assert f"at most {min(slow):.2f} to {max(slow):.2f}x on PCIe or over a 400 Gbit/s port a GPU" in said
    less = [1 + (gain - 1) * 0.35 / ACHIEVED_FLOPS for gain in (max(nvlink), max(slow))]
    assert f"at 35% of the peak, 1.04 becomes {less[0]:.2f} and 1.37 becomes {less[1]:.2f}" in said
    for model in wans:
        joined = model.tokens / 8 * 64 * 7  # a token's 16 channels of 2x2 latents
        assert joined * roofline.ELEMENT_BYTES < 0.001 * model.ulysses_bytes(8)
    for model, machine in ((m, k) for m in MODELS for k in MACHINES):
        assert model.ring_bytes(8) == 4 * model.ulysses_bytes(8)
        assert roofline.ulysses(model, machine, 8).compute_s == roofline.ring(model, machine, 8).compute_s
        assert roofline.ulysses(model, machine, 8).exchange_s < roofline.ulysses(model, machine, 4).exchange_s
        assert roofline.ring(model, machine, 8).exchange_s > roofline.ring(model, machine, 4).exchange_s
    two, eight = (max(vars(roofline.ring(FLUX, ETHERNET, n)).values()) for n in (2, 8))
    assert two < eight
    for machine in (NODES, ETHERNET):
        step = roofline.ulysses(FLUX, machine, 8)
        assert step.exchange_s > step.compute_s
