"""FLUX's attention blocks around an attention that is handed in from outside."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.embeddings import apply_rotary_emb

from raydiance.models.flux_tokens import IMAGE, TEXT
from raydiance.models.tokens import Tokens


class Processor:
    """diffusers' attention-processor interface, for the double blocks and the single ones.

    Projections, norms and rotary embedding are those of diffusers' `FluxAttnProcessor`; only the attention between them
    is the given one. It runs over text and pictures at once, text first.
    """

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

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
        text = encoder_hidden_states

        def query() -> torch.Tensor:
            q = attn.norm_q(_heads(attn, attn.to_q(hidden_states)))
            if text is not None:
                q = torch.cat([attn.norm_added_q(_heads(attn, attn.add_q_proj(text))), q], dim=1)
            return _rotate(q, image_rotary_emb)

        def key() -> torch.Tensor:
            k = attn.norm_k(_heads(attn, attn.to_k(hidden_states)))
            if text is not None:
                k = torch.cat([attn.norm_added_k(_heads(attn, attn.add_k_proj(text))), k], dim=1)
            return _rotate(k, image_rotary_emb)

        def value() -> torch.Tensor:
            v = _heads(attn, attn.to_v(hidden_states))
            return v if text is None else torch.cat([_heads(attn, attn.add_v_proj(text)), v], dim=1)

        out = self.tokens.attend(query, key, value, queries=(TEXT, IMAGE)).flatten(2, 3).type_as(hidden_states)
        if text is None:
            return out
        of_text, of_pictures = out.split([text.shape[1], hidden_states.shape[1]], dim=1)
        projection, dropout = attn.to_out
        return dropout(projection(of_pictures.contiguous())), attn.to_add_out(of_text.contiguous())


def _heads(attn: Any, x: torch.Tensor) -> torch.Tensor:
    """[B, L, D] -> [B, L, H, D / H]."""
    heads: torch.Tensor = x.unflatten(-1, (-1, attn.head_dim))
    return heads


def _rotate(x: torch.Tensor, rotary_emb: tuple[torch.Tensor, torch.Tensor] | None) -> torch.Tensor:
    if rotary_emb is None:
        return x
    rotated: torch.Tensor = apply_rotary_emb(x, rotary_emb, sequence_dim=1)
    return rotated
