"""A word-level tokenizer with T5's special ids, so that UMT5 and WanPipeline take it as it is."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from raydiance.models.tiny import world

PAD, EOS, UNK = "<pad>", "</s>", "<unk>"
MAX_SEQUENCE_LENGTH = 24
"""Tokens a prompt is padded or cut to. The model was trained at this length: another one changes its output."""


def build() -> PreTrainedTokenizerFast:
    """The tokenizer of this world: lower case, one id a word, `<pad>`=0, `</s>`=1, `<unk>`=2."""
    words = [PAD, EOS, UNK, *world.vocabulary()]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNK))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {EOS}", special_tokens=[(EOS, 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        model_max_length=MAX_SEQUENCE_LENGTH,
        padding_side="right",
    )


def save(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write `tokenizer.json` and its configuration, naming the class that both transformers 4 and 5 know."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2) + "\n")
