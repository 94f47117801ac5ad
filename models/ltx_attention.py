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

from raydiance.models.ltx_tokens import AUDIO, VIDEO
from raydiance.models.tokens import WHOLE, Streams, Tokens

Rotary = tuple[torch.Tensor, torch.Tensor]
ATTENTIONS: dict[str, tuple[Streams, Streams | None]] = {
    "attn1": ((VIDEO,), None),
    "audio_attn1": ((AUDIO,), None),
    "attn2": ((VIDEO,), WHOLE),
    "audio_attn2": ((AUDIO,), WHOLE),
    "audio_to_video_attn": ((VIDEO,), (AUDIO,)),
    "video_to_audio_attn": ((AUDIO,), (VIDEO,)),
}
"""A block's, by name: which streams ask, and which they attend to."""


class Processor:
    """diffusers' attention-processor interface: self-attention of video and sound, attention of each to its text and
    to the other.

    Projections, norms, rotary embedding and gates are those of diffusers' processors; only the attention between them
    is the given one. It takes no mask: where the text has padding (connectors without learnable registers) diffusers'
    own attends to it. So it does where spatio-temporal guidance skips the attention, since nothing is attended to.

    Args:
        keys: `queries` where None.
    """

    def __init__(self, tokens: Tokens, queries: Streams, keys: Streams | None) -> None:
        self.tokens = tokens
        self.queries = queries
        self.keys = keys
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
        all_perturbed: whether it does for every row.

        Raises ValueError for a mask of keys that may be cut, and for a perturbation of some rows.
        """
        if attention_mask is not None or perturbation_mask is not None:
            if attention_mask is not None and self.keys != WHOLE:
                raise ValueError("an attention handed in from outside takes no mask")
            if perturbation_mask is not None and not all_perturbed:
                raise ValueError("an attention handed in from outside is skipped for all rows of a forward or for none")
            rotary = query_rotary_emb, key_rotary_emb
            own: torch.Tensor = self.own(
                attn, hidden_states, encoder_hidden_states, attention_mask, *rotary, perturbation_mask, all_perturbed
            )
            return own
        context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        out = self.tokens.attend(
            lambda: _heads(attn, attn.norm_q(attn.to_q(hidden_states)), query_rotary_emb),
            lambda: _heads(attn, attn.norm_k(attn.to_k(context)), key_rotary_emb or query_rotary_emb),
            lambda: _heads(attn, attn.to_v(context)),
            queries=self.queries,
            keys=self.keys,
        ).type_as(hidden_states)
        if attn.to_gate_logits is not None:
            out = out * (2.0 * torch.sigmoid(attn.to_gate_logits(hidden_states))).unsqueeze(-1)
        projection, dropout = attn.to_out
        result: torch.Tensor = dropout(projection(out.flatten(2, 3)))
        return result


def set_processors(transformer: Any, tokens: Tokens | None) -> None:
    """Hands all tokens of every block to what is outside; None goes back to diffusers' own."""
    own = LTX2PerturbedAttnProcessor if transformer.config.perturbed_attn else LTX2AudioVideoAttnProcessor
    for block in transformer.transformer_blocks:
        for name, (queries, keys) in ATTENTIONS.items():
            processor = own() if tokens is None else Processor(tokens, queries, keys)
            getattr(block, name).set_processor(processor)


def _heads(attn: Any, x: torch.Tensor, rotary_emb: Rotary | None = None) -> torch.Tensor:
    """[B, L, D] -> [B, L, H, D / H], turned where there is a rotary embedding."""
    if rotary_emb is not None and x.shape[1] > 0:  # diffusers' split one cannot reshape no tokens
        rotate = apply_split_rotary_emb if attn.rope_type == "split" else apply_interleaved_rotary_emb
        x = rotate(x, rotary_emb)
    heads: torch.Tensor = x.unflatten(2, (attn.heads, -1))
    return heads
