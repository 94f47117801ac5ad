"""A tokenizer of a dozen words, for encoders of random weights."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = ("a", "the", "red", "blue", "black", "circle", "square", "moves", "left", "over")
SPECIAL = ("<pad>", "</s>", "<unk>")


def vocabulary(special: tuple[str, ...] = SPECIAL) -> list[str]:
    """In the order of their ids."""
    return [*special, *WORDS]


def t5_tokenizer(**options: Any) -> PreTrainedTokenizerFast:
    """Ends a text, and pads it behind its end."""
    return word_tokenizer(SPECIAL, "$A </s>", eos_token="</s>", padding_side="right", **options)


def word_tokenizer(special: tuple[str, ...], template: str, **options: Any) -> PreTrainedTokenizerFast:
    """Args:
    template: what stands around a text, `$A`.
    """
    ids = {word: i for i, word in enumerate(vocabulary(special))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    around = [(word, ids[word]) for word in template.split() if word in ids]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=around)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", **options)
