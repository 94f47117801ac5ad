"""LTX-2's attention around an attention that is handed in from outside."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.transformers.transformer_ltx2 import (
    LTX2AudioVideoAttnProcessor,
    LTX2PerturbedAttnProcessor,
    apply_interleaved_rotary_emb,
    apply_split_rotary_emb,
)

from raydiance.models.family import Attention

Rotary = tuple[torch.Tensor, torch.Tensor]


class Processor:
    """diffusers' attention-processor interface: self-attention of video and sound, attention of each to its text and
    to the other.

    Projections, norms, rotary embedding and gates are those of diffusers' processors; only the attention between them
    is the given one. It takes no mask: where the text has padding (connectors without learnable registers) diffusers'
    own attends to it. So it does where spatio-temporal guidance skips the attention, since nothing is attended to.
    """

    def __init__(self, attention: Attention) -> None:
        self.attention = attention
        self.own = LTX2PerturbedAttnProcessor()

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        query_rotary_emb: Rotary | None = None,
        key_rotary_emb: Rotary | None = None,
        perturbation_mask: torch.Tensor | None = None,
        all_perturbed: bool | None = None,
    ) -> torch.Tensor:
        """Args:
        hidden_states: [B, L, D].
        encoder_hidden_states: [B, S, D'] in cross-attention.
        attention_mask: a bias, [B, 1, S], of text with padding.
        query_rotary_emb: cosine and sine; also of the keys, unless those have their own.
        perturbation_mask: 0 where spatio-temporal guidance skips the attention.
        """
        if attention_mask is not None or perturbation_mask is not None:
            rotary = query_rotary_emb, key_rotary_emb
            own: torch.Tensor = self.own(
                attn, hidden_states, encoder_hidden_states, attention_mask, *rotary, perturbation_mask, all_perturbed
            )
            return own
        context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query, key = attn.norm_q(attn.to_q(hidden_states)), attn.norm_k(attn.to_k(context))
        if query_rotary_emb is not None:
            rotate = apply_split_rotary_emb if attn.rope_type == "split" else apply_interleaved_rotary_emb
            query, key = rotate(query, query_rotary_emb), rotate(key, key_rotary_emb or query_rotary_emb)
        q, k, v = (x.unflatten(2, (attn.heads, -1)) for x in (query, key, attn.to_v(context)))
        out = self.attention(q, k, v).type_as(q)
        if attn.to_gate_logits is not None:
            out = out * (2.0 * torch.sigmoid(attn.to_gate_logits(hidden_states))).unsqueeze(-1)
        projection, dropout = attn.to_out
        result: torch.Tensor = dropout(projection(out.flatten(2, 3)))
        return result


def set_attention(transformer: Any, attention: Attention | None) -> None:
    """Hands an attention to every block; None goes back to diffusers' own."""
    own = LTX2PerturbedAttnProcessor if transformer.config.perturbed_attn else LTX2AudioVideoAttnProcessor
    transformer.set_attn_processor(own() if attention is None else Processor(attention))
