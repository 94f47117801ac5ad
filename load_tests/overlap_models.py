"""The rows of the overlap benchmark: layers of Wan and of FLUX with random weights, and what is asked of them.

A row's work is one denoising step: one forward without guidance, or two that do not depend on one another (a guidance
pair: one state, two prompts; or two requests: two of everything).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from diffusers import FluxTransformer2DModel, WanTransformer3DModel

Inputs = dict[str, Any]
"""The arguments of a transformer's forward, by name."""

WIDTH, HEADS = 512, 8
FP32_BYTES = 4
LATENT_CHANNELS = 16
PATCH_NUMBERS = 4 * LATENT_CHANNELS
"""Of one token, where it enters the transformer and where it leaves it, for both families."""
WAN_LAYERS, WAN_LATENT_SIZE = 2, (5, 32, 32)
WAN_TOKENS = WAN_LATENT_SIZE[0] * WAN_LATENT_SIZE[1] * WAN_LATENT_SIZE[2] // 4
WAN_TEXT_TOKENS, WAN_TEXT_WIDTH = 32, 64
FLUX_DOUBLE_BLOCKS, FLUX_SINGLE_BLOCKS, FLUX_GRID = 1, 2, (32, 40)
FLUX_IMAGE_TOKENS = FLUX_GRID[0] * FLUX_GRID[1]
FLUX_TEXT_TOKENS, FLUX_TEXT_WIDTH, FLUX_POOLED_WIDTH = 64, 128, 64


@dataclass(frozen=True)
class Row:
    """Args:
    num_tokens: in the attention that is sharded.
    num_attentions: of that attention, in a forward.
    num_output_tokens: those that leave the transformer.
    """

    name: str
    family: Literal["wan", "flux"]
    forwards: Literal["one", "pair", "requests"]
    num_tokens: int
    num_attentions: int
    num_output_tokens: int

    @property
    def num_forwards(self) -> int:
        return 1 if self.forwards == "one" else 2

    def model(self) -> torch.nn.Module:
        """Always the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return MODELS[self.family]().eval().requires_grad_(False)

    def inputs(self, seed: int) -> list[Inputs]:
        """Of each forward."""
        make = INPUTS[self.family]
        first = make(2 * seed)
        if self.forwards == "one":
            return [first]
        second = make(2 * seed + 1)
        if self.forwards == "pair":
            second = first | {"encoder_hidden_states": second["encoder_hidden_states"]}
        return [first, second]

    def sequence_bytes(self, world: int) -> int:
        """What one rank sends in a step that is sharded by sequence (Ulysses), all outputs joined on every rank.

        Of each attention's q, k, v and output a rank holds 1/world and keeps 1/world of that.
        """
        attention = 4 * self.num_tokens * WIDTH * (world - 1) // world**2
        joined = self.num_output_tokens * PATCH_NUMBERS * (world - 1) // world
        return FP32_BYTES * self.num_forwards * (self.num_attentions * attention + joined)

    def branch_bytes(self) -> int:
        """What each of two ranks sends that have a branch each: its output."""
        return FP32_BYTES * self.num_output_tokens * PATCH_NUMBERS


def wan() -> torch.nn.Module:
    return WanTransformer3DModel(
        num_attention_heads=HEADS,
        attention_head_dim=WIDTH // HEADS,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        text_dim=WAN_TEXT_WIDTH,
        freq_dim=64,
        ffn_dim=2976,  # 5.8 times the width, as in Wan's 1.3B
        num_layers=WAN_LAYERS,
        rope_max_seq_len=64,
    )


def flux() -> torch.nn.Module:
    return FluxTransformer2DModel(
        in_channels=PATCH_NUMBERS,
        num_layers=FLUX_DOUBLE_BLOCKS,
        num_single_layers=FLUX_SINGLE_BLOCKS,
        attention_head_dim=WIDTH // HEADS,
        num_attention_heads=HEADS,
        joint_attention_dim=FLUX_TEXT_WIDTH,
        pooled_projection_dim=FLUX_POOLED_WIDTH,
        guidance_embeds=True,
        axes_dims_rope=(16, 24, 24),
    )


def wan_inputs(seed: int) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    return {
        "hidden_states": torch.randn(1, LATENT_CHANNELS, *WAN_LATENT_SIZE, generator=generator),
        "timestep": torch.tensor([500 + seed]),
        "encoder_hidden_states": torch.randn(1, WAN_TEXT_TOKENS, WAN_TEXT_WIDTH, generator=generator),
    }


def flux_inputs(seed: int) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.zeros(*FLUX_GRID, 3)
    ids[..., 1] += torch.arange(FLUX_GRID[0])[:, None]
    ids[..., 2] += torch.arange(FLUX_GRID[1])
    return {
        "hidden_states": torch.randn(1, FLUX_IMAGE_TOKENS, PATCH_NUMBERS, generator=generator),
        "encoder_hidden_states": torch.randn(1, FLUX_TEXT_TOKENS, FLUX_TEXT_WIDTH, generator=generator),
        "pooled_projections": torch.randn(1, FLUX_POOLED_WIDTH, generator=generator),
        "timestep": torch.tensor([0.5 + 0.01 * seed]),
        "guidance": torch.tensor([3.5]),
        "img_ids": ids.reshape(-1, 3),
        "txt_ids": torch.zeros(FLUX_TEXT_TOKENS, 3),
    }


MODELS: dict[str, Callable[[], torch.nn.Module]] = {"wan": wan, "flux": flux}
INPUTS: dict[str, Callable[[int], Inputs]] = {"wan": wan_inputs, "flux": flux_inputs}

_FLUX_TOKENS = FLUX_TEXT_TOKENS + FLUX_IMAGE_TOKENS
_FLUX_BLOCKS = FLUX_DOUBLE_BLOCKS + FLUX_SINGLE_BLOCKS
ROWS = {
    row.name: row
    for row in (
        Row("wan-free", "wan", "one", WAN_TOKENS, WAN_LAYERS, WAN_TOKENS),
        Row("wan-pair", "wan", "pair", WAN_TOKENS, WAN_LAYERS, WAN_TOKENS),
        Row("wan-two", "wan", "requests", WAN_TOKENS, WAN_LAYERS, WAN_TOKENS),
        Row("flux", "flux", "one", _FLUX_TOKENS, _FLUX_BLOCKS, FLUX_IMAGE_TOKENS),
    )
}
