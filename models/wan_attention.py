"""Wan's attention blocks around an attention that is handed in from outside."""

from __future__ import annotations

from typing import Any

import torch

from raydiance.models.family import Attention
from raydiance.models.wan_config import TEXT_TOKENS


class Processor:
    """diffusers' attention-processor interface, for self- and cross-attention.

    Projections, norms and rotary embedding are those of diffusers' `WanAttnProcessor`; only the attention between them
    is the given one.
    """

    def __init__(self, attention: Attention) -> None:
        self.attention = attention

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Args:
        hidden_states: [B, L, D].
        encoder_hidden_states: [B, S, D] in cross-attention; an image encoder's tokens come before the prompt's.
        attention_mask: None always; Wan passes none.
        rotary_emb: cosine and sine, [1, L, 1, D / heads], in self-attention.
        """
        if attention_mask is not None:
            raise ValueError("an attention handed in from outside takes no mask")
        context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        num_frame_tokens = context.shape[1] - TEXT_TOKENS if attn.add_k_proj is not None else 0
        frames, context = context[:, :num_frame_tokens], context[:, num_frame_tokens:]
        query, key = attn.norm_q(attn.to_q(hidden_states)), attn.norm_k(attn.to_k(context))
        q, k, v = (x.unflatten(2, (attn.heads, -1)) for x in (query, key, attn.to_v(context)))
        if rotary_emb is not None:
            q, k = _rotate(q, *rotary_emb), _rotate(k, *rotary_emb)
        out = self.attention(q, k, v).flatten(2, 3).type_as(q)
        if num_frame_tokens:
            key, value = attn.norm_added_k(attn.add_k_proj(frames)), attn.add_v_proj(frames)
            k, v = (x.unflatten(2, (attn.heads, -1)) for x in (key, value))
            out = out + self.attention(q, k, v).flatten(2, 3).type_as(q)
        projection, dropout = attn.to_out
        result: torch.Tensor = dropout(projection(out))
        return result


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates pairs of neighbouring channels of [B, L, H, D]; cosine and sine hold every angle twice."""
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    c, s = cos[..., 0::2], sin[..., 1::2]
    return torch.stack((even * c - odd * s, even * s + odd * c), dim=-1).flatten(-2).type_as(x)
