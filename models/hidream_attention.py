"""HiDream's double and single blocks around an attention that is handed in from outside."""

from __future__ import annotations

from typing import Any

import torch

from raydiance.models.hidream_tokens import JOINT
from raydiance.models.tokens import Tokens


class Processor:
    """diffusers' attention-processor interface: pictures, and in double blocks texts, attend to all.

    Projections, norms and rotary embedding are those of diffusers' `HiDreamAttnProcessor`; only the attention between
    them is the given one.
    """

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        hidden_states_masks: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        image_rotary_emb: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Args:
        hidden_states: [B, L, D], of the picture; in single blocks of picture and text.
        hidden_states_masks: [B, L], 0 where a picture is padded: the keys there become zeros, and stay attended to.
        encoder_hidden_states: [B, S, D] of the text, in double blocks.
        image_rotary_emb: [B, L + S, 1, R / 2, 2, 2]; the first R channels of a head are rotated.
        """
        text = encoder_hidden_states

        def query() -> torch.Tensor:
            q = _heads(attn, attn.q_rms_norm(attn.to_q(hidden_states)))
            if text is not None:
                q = torch.cat([q, _heads(attn, attn.q_rms_norm_t(attn.to_q_t(text)))], dim=1)
            return _rotate(q, image_rotary_emb)

        def key() -> torch.Tensor:
            k = _heads(attn, attn.k_rms_norm(attn.to_k(hidden_states)))
            if hidden_states_masks is not None:
                k = k * hidden_states_masks[:, :, None, None]
            if text is not None:
                k = torch.cat([k, _heads(attn, attn.k_rms_norm_t(attn.to_k_t(text)))], dim=1)
            return _rotate(k, image_rotary_emb)

        def value() -> torch.Tensor:
            v = _heads(attn, attn.to_v(hidden_states))
            return v if text is None else torch.cat([v, _heads(attn, attn.to_v_t(text))], dim=1)

        out = self.tokens.attend(query, key, value, queries=JOINT).flatten(2, 3).type_as(hidden_states)
        if text is None:
            joint: torch.Tensor = attn.to_out(out)
            return joint
        num_image_tokens = hidden_states.shape[1]
        return attn.to_out(out[:, :num_image_tokens]), attn.to_out_t(out[:, num_image_tokens:])


def _heads(attn: Any, x: torch.Tensor) -> torch.Tensor:
    """[B, L, D] -> [B, L, H, D / H]."""
    heads: torch.Tensor = x.unflatten(2, (attn.heads, -1))
    return heads


def _rotate(x: torch.Tensor, rotary_emb: Any) -> torch.Tensor:
    """Turns pairs of neighbouring channels of [B, L, H, D], the first ones, by a matrix [2, 2] each."""
    size = 2 * rotary_emb.shape[-3]
    pairs = x[..., :size].float().unflatten(-1, (-1, 2))
    turned = rotary_emb[..., 0] * pairs[..., 0, None] + rotary_emb[..., 1] * pairs[..., 1, None]
    return torch.cat([turned.flatten(-2).type_as(x), x[..., size:]], dim=-1)
