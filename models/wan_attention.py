"""Wan's attention blocks around an attention that is handed in from outside."""

from __future__ import annotations

from typing import Any

import torch

from raydiance.models.tokens import WHOLE, Tokens
from raydiance.models.wan_config import TEXT_TOKENS
from raydiance.models.wan_tokens import VIDEO


class Processor:
    """diffusers' attention-processor interface, for self- and cross-attention.

    Projections, norms and rotary embedding are those of diffusers' `WanAttnProcessor`; only the attention between them
    is the given one.
    """

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

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
        is_cross = encoder_hidden_states is not None

        def query() -> torch.Tensor:
            return _heads(attn, attn.norm_q(attn.to_q(hidden_states)), rotary_emb)

        out = self.tokens.attend(
            query,
            lambda: _heads(attn, attn.norm_k(attn.to_k(context)), rotary_emb),
            lambda: _heads(attn, attn.to_v(context)),
            queries=(VIDEO,),
            keys=WHOLE if is_cross else None,
        ).flatten(2, 3)
        if num_frame_tokens:
            of_frames = self.tokens.attend(
                query,
                lambda: _heads(attn, attn.norm_added_k(attn.add_k_proj(frames))),
                lambda: _heads(attn, attn.add_v_proj(frames)),
                queries=(VIDEO,),
                keys=WHOLE,
            )
            out = out + of_frames.flatten(2, 3)
        projection, dropout = attn.to_out
        result: torch.Tensor = dropout(projection(out.type_as(hidden_states)))
        return result


def _heads(attn: Any, x: torch.Tensor, rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None) -> torch.Tensor:
    """[B, L, D] -> [B, L, H, D / H], turned where there is a rotary embedding."""
    x = x.unflatten(2, (attn.heads, -1))
    return x if rotary_emb is None else _rotate(x, *rotary_emb)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates pairs of neighbouring channels of [B, L, H, D]; cosine and sine hold every angle twice."""
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    c, s = cos[..., 0::2], sin[..., 1::2]
    return torch.stack((even * c - odd * s, even * s + odd * c), dim=-1).flatten(-2).type_as(x)
