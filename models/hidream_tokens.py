"""HiDream's tokens handed to what is outside: `image` with its padding, `t5`, and `llama`.

A block has Llama's tokens twice, of the last layer and of the block's own; both are cut alike, as one stream.
"""

from __future__ import annotations

from typing import Any

from raydiance.models.seams import Arguments, Seams
from raydiance.models.tokens import Tokens

IMAGE, T5, LLAMA = "image", "t5", "llama"
JOINT = (IMAGE, T5, LLAMA, LLAMA)
"""As the tokens lie in every block."""


def hook(transformer: Any, tokens: Tokens) -> Seams:
    """The transformer is given patches, which it would else make itself, of which some can be cut: nothing before its
    blocks looks at more than one token, and the lengths that it computes are those of its part."""
    seams = Seams()

    def enter(arguments: Arguments) -> None:
        patches, masks, sizes, ids = transformer.patchify(arguments["hidden_states"])
        if masks is None:  # a square picture has no padding; the transformer takes patches with a mask only
            masks = patches.new_ones(patches.shape[:2])
        t5, llama = arguments["encoder_hidden_states_t5"], arguments["encoder_hidden_states_llama3"]
        tokens.begin(**{IMAGE: patches.shape[1], T5: t5.shape[1], LLAMA: llama.shape[2]})
        arguments |= {
            "hidden_states": tokens.cut(patches, 1, IMAGE),
            "hidden_states_masks": tokens.cut(masks, 1, IMAGE),
            "img_ids": tokens.cut(ids, 1, IMAGE),
            "img_sizes": sizes,
            "encoder_hidden_states_t5": tokens.cut(t5, 1, T5),
            "encoder_hidden_states_llama3": tokens.cut(llama, 2, LLAMA),
        }

    seams.before(transformer, enter)
    seams.after(transformer.final_layer, lambda hidden_states: tokens.join(hidden_states, 1, IMAGE))
    return seams
