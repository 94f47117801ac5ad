"""FLUX's tokens handed to what is outside: `text`, and `image` with a reference's after those that are denoised."""

from __future__ import annotations

from typing import Any

from raydiance.models.seams import Arguments, Seams
from raydiance.models.tokens import Tokens

TEXT, IMAGE = "text", "image"


def hook(transformer: Any, tokens: Tokens) -> Seams:
    """Nothing before the blocks looks at more than one token, so what is cut is what the transformer is given."""
    seams = Seams()

    def enter(arguments: Arguments) -> None:
        text, image = arguments["encoder_hidden_states"], arguments["hidden_states"]
        tokens.begin(**{TEXT: text.shape[1], IMAGE: image.shape[1]})
        arguments |= {
            "encoder_hidden_states": tokens.cut(text, 1, TEXT),
            "hidden_states": tokens.cut(image, 1, IMAGE),
            "txt_ids": tokens.cut(arguments["txt_ids"], 0, TEXT),
            "img_ids": tokens.cut(arguments["img_ids"], 0, IMAGE),
        }

    seams.before(transformer, enter)
    seams.after(transformer.proj_out, lambda hidden_states: tokens.join(hidden_states, 1, IMAGE))
    return seams
