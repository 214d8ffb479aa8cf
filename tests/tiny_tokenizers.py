"""Tokenizers of a few pieces that tests write down, in the ways of published ones."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers


def metaspace(pieces: Sequence[str]) -> Tokenizer:
    """As Llama 2: words begin with a blank that is dropped at the start of a text, and unknown characters are bytes."""
    listed = ["<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁▁", *pieces]
    found = Tokenizer(models.BPE({piece: at for at, piece in enumerate(listed)}, [], byte_fallback=True))
    found.add_special_tokens(["<s>"])
    found.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    found.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return found


def word_pieces(pieces: Sequence[str]) -> Tokenizer:
    """As BERT: a blank between words is no token's, and what goes on with a word is marked."""
    listed = ["<s>", "[UNK]", *pieces]
    found = Tokenizer(models.WordPiece({piece: at for at, piece in enumerate(listed)}, unk_token="[UNK]"))
    found.add_special_tokens(["<s>"])
    found.pre_tokenizer, found.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(cleanup=False)
    return found
