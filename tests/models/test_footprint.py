"""Costs on `meta` are those of the real module: parameters, multiply-adds counted by hand, memory of what is alive."""

from __future__ import annotations

import pytest
import torch
from diffusers import AutoencoderKLWan
from torch.utils.flop_counter import FlopCounterMode

from raydiance.models.footprint import META, count_parameters, measure
from raydiance.models.wan_vae import decode_frames


def test_a_linear_layer_costs_what_it_costs():
    with META:
        layer = torch.nn.Linear(64, 128)
    x = torch.empty(10, 64, device=META)
    cost = measure(layer, lambda: layer(x))
    assert count_parameters(layer) == 64 * 128 + 128
    assert cost.flops == 2 * 10 * 64 * 128
    assert cost.peak_bytes == 10 * 128 * 4  # its weights and the views of them do not count


def test_what_is_let_go_is_not_alive():
    with META:
        layers = torch.nn.Sequential(*[torch.nn.Linear(32, 32, bias=False) for _ in range(6)])
    x = torch.empty(100, 32, device=META)
    one = 100 * 32 * 4
    assert measure(layers, lambda: layers(x)).peak_bytes == 2 * one  # input and output of one layer at a time
    assert measure(layers, lambda: [layer(x) for layer in layers]).peak_bytes == 6 * one


@pytest.mark.parametrize("heads", [1, 4])
def test_attention_counts_as_fused(heads):
    module = torch.nn.Module()
    q, k = (torch.empty(2, heads, length, 16, device=META) for length in (30, 50))
    cost = measure(module, lambda: torch.nn.functional.scaled_dot_product_attention(q, key=k, value=k))
    assert cost.flops == 2 * (2 * 2 * heads * 30 * 50 * 16)
    assert cost.peak_bytes == q.numel() * 4  # the result, and no scores


def test_numbers_on_meta_are_those_of_a_real_run():
    """FLOPs of a VAE's decoding, counted by torch while it computes."""
    torch.manual_seed(0)
    sizes = {"base_dim": 4, "z_dim": 4, "dim_mult": [1, 1, 2, 2], "num_res_blocks": 1}
    real = AutoencoderKLWan(**sizes).eval()
    with META:
        empty = AutoencoderKLWan(**sizes).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        list(decode_frames(real, torch.zeros(1, 4, 3, 8, 8)))
    cost = measure(empty, lambda: list(decode_frames(empty, torch.empty(1, 4, 3, 8, 8, device=META))))
    attention = 3 * 4 * 64**2 * 8  # three frames of 8x8 tokens of width 8: on a CPU torch does not count it
    assert count_parameters(empty) == count_parameters(real)
    assert cost.flops == counter.get_total_flops() + attention
