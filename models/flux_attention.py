"""FLUX's attention blocks around an attention that is handed in from outside."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.embeddings import apply_rotary_emb

from raydiance.models.family import Attention


class Processor:
    """diffusers' attention-processor interface, for the double blocks and the single ones.

    Projections, norms and rotary embedding are those of diffusers' `FluxAttnProcessor`; only the attention between them
    is the given one. It runs over text and pictures at once, text first.
    """

    def __init__(self, attention: Attention) -> None:
        self.attention = attention

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Args:
        hidden_states: [B, L, D] of the pictures; of text and pictures in a single block.
        encoder_hidden_states: [B, S, D] of the text, in a double block.
        attention_mask: None always; FLUX passes none.
        image_rotary_emb: cosine and sine, [S + L, D / heads].
        """
        if attention_mask is not None:
            raise ValueError("an attention handed in from outside takes no mask")
        q, k, v = _heads(attn, hidden_states, attn.to_q, attn.to_k, attn.to_v)
        q, k = attn.norm_q(q), attn.norm_k(k)
        if encoder_hidden_states is not None:
            text = _heads(attn, encoder_hidden_states, attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
            text_q, text_k, text_v = text
            q = torch.cat([attn.norm_added_q(text_q), q], dim=1)
            k = torch.cat([attn.norm_added_k(text_k), k], dim=1)
            v = torch.cat([text_v, v], dim=1)
        if image_rotary_emb is not None:
            q = apply_rotary_emb(q, image_rotary_emb, sequence_dim=1)
            k = apply_rotary_emb(k, image_rotary_emb, sequence_dim=1)
        out = self.attention(q, k, v).flatten(2, 3).type_as(q)
        if encoder_hidden_states is None:
            return out
        of_text, of_pictures = out.split([encoder_hidden_states.shape[1], hidden_states.shape[1]], dim=1)
        projection, dropout = attn.to_out
        return dropout(projection(of_pictures)), attn.to_add_out(of_text)


def _heads(attn: Any, x: torch.Tensor, *projections: torch.nn.Module) -> list[torch.Tensor]:
    """[B, L, D] -> one [B, L, H, D / H] for each projection."""
    return [projection(x).unflatten(-1, (-1, attn.head_dim)) for projection in projections]
