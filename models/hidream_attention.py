"""HiDream's double and single blocks around an attention that is handed in from outside."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.transformers.transformer_hidream_image import apply_rope

from raydiance.models.family import Attention


class Processor:
    """diffusers' attention-processor interface: pictures, and in double blocks texts, attend to all.

    Projections, norms and rotary embedding are those of diffusers' `HiDreamAttnProcessor`; only the attention between
    them is the given one.
    """

    def __init__(self, attention: Attention) -> None:
        self.attention = attention

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
        image = (
            attn.q_rms_norm(attn.to_q(hidden_states)),
            attn.k_rms_norm(attn.to_k(hidden_states)),
            attn.to_v(hidden_states),
        )
        q, k, v = (x.unflatten(2, (attn.heads, -1)) for x in image)
        if hidden_states_masks is not None:
            k = k * hidden_states_masks[:, :, None, None]
        if not attn.single:
            text = (
                attn.q_rms_norm_t(attn.to_q_t(encoder_hidden_states)),
                attn.k_rms_norm_t(attn.to_k_t(encoder_hidden_states)),
                attn.to_v_t(encoder_hidden_states),
            )
            texts = (x.unflatten(2, (attn.heads, -1)) for x in text)
            q, k, v = (torch.cat(pair, dim=1) for pair in zip((q, k, v), texts, strict=True))
        q, k = _rotate(q, k, image_rotary_emb)
        out = self.attention(q, k, v).flatten(2, 3).type_as(hidden_states)
        if attn.single:
            joint: torch.Tensor = attn.to_out(out)
            return joint
        num_image_tokens = hidden_states.shape[1]
        return attn.to_out(out[:, :num_image_tokens]), attn.to_out_t(out[:, num_image_tokens:])


def _rotate(q: torch.Tensor, k: torch.Tensor, rotary_emb: Any) -> tuple[torch.Tensor, torch.Tensor]:
    rotated = 2 * rotary_emb.shape[-3]
    q_rotated, k_rotated = apply_rope(q[..., :rotated], k[..., :rotated], rotary_emb)
    return torch.cat([q_rotated, q[..., rotated:]], dim=-1), torch.cat([k_rotated, k[..., rotated:]], dim=-1)
