"""Wan's tokens handed to what is outside: one stream, `video`, from the first block to the last projection."""

from __future__ import annotations

from typing import Any

from raydiance.models.seams import Arguments, Seams
from raydiance.models.tokens import Tokens

VIDEO = "video"


def hook(transformer: Any, tokens: Tokens, per_token: bool) -> Seams:
    """Args:
    per_token: whether each token can have its own timestep; what comes after the blocks then needs all tokens.
    """
    seams = Seams()
    first = [transformer.blocks[0]]
    if hasattr(transformer, "vace_blocks"):
        first += list(transformer.vace_blocks)  # they run before the others, on the tokens as they are embedded

    def enter(arguments: Arguments) -> None:
        rotary = arguments["rotary_emb"]
        arguments["rotary_emb"] = tuple(tokens.cut(part, 1, VIDEO) for part in rotary)
        if arguments["temb"].dim() == 4:  # [B, L, 6, D]
            arguments["temb"] = tokens.cut(arguments["temb"], 1, VIDEO)

    def enter_first(arguments: Arguments) -> None:
        arguments["hidden_states"] = tokens.cut(arguments["hidden_states"], 1, VIDEO)

    def enter_control(arguments: Arguments) -> None:
        arguments["control_hidden_states"] = tokens.cut(arguments["control_hidden_states"], 1, VIDEO)

    for block in first:
        seams.before(block, enter_first)
    if hasattr(transformer, "vace_blocks"):
        seams.before(transformer.vace_blocks[0], enter_control)
    for block in {*transformer.blocks, *first}:
        seams.before(block, enter)
    last = transformer.blocks[-1] if per_token else transformer.proj_out
    seams.after(last, lambda hidden_states: tokens.join(hidden_states, 1, VIDEO))
    return seams
