"""LTX-2's tokens handed to what is outside: `video` and `audio`. Text is whole wherever it is attended to."""

from __future__ import annotations

from typing import Any

import torch

from raydiance.models.seams import Arguments, Seams
from raydiance.models.tokens import Tokens

VIDEO, AUDIO = "video", "audio"


def hook(transformer: Any, tokens: Tokens) -> Seams:
    """Nothing before the blocks looks at more than one token, so what is cut is what the transformer is given.

    But for the places of the sound, which can be shorter than there are ranks: diffusers' rotary embedding fails where
    there are none.
    """
    seams = Seams()

    def enter(arguments: Arguments) -> None:
        video, audio = arguments["hidden_states"], arguments["audio_hidden_states"]
        tokens.begin(**{VIDEO: video.shape[1], AUDIO: audio.shape[1]})
        arguments |= {
            "hidden_states": tokens.cut(video, 1, VIDEO),
            "audio_hidden_states": tokens.cut(audio, 1, AUDIO),
            "video_coords": tokens.cut(arguments["video_coords"], 2, VIDEO),
        }
        if arguments["timestep"].dim() == 2:  # [B, S]: one a token where a frame is given
            arguments["timestep"] = tokens.cut(arguments["timestep"], 1, VIDEO)

    dim = 2 if transformer.config.rope_type == "split" else 1  # [B, H, L, D / H / 2] or [B, L, D]

    def cut_rotary(parts: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return tuple(tokens.cut(part, dim, AUDIO) for part in parts)

    seams.before(transformer, enter)
    seams.after(transformer.audio_rope, cut_rotary)
    seams.after(transformer.cross_attn_audio_rope, cut_rotary)
    seams.after(transformer.proj_out, lambda hidden_states: tokens.join(hidden_states, 1, VIDEO))
    seams.after(transformer.audio_proj_out, lambda hidden_states: tokens.join(hidden_states, 1, AUDIO))
    return seams
