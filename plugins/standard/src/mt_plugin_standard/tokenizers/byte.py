"""The bytes of UTF-8 as tokens: no file, no training, any text (ByT5, https://arxiv.org/abs/2105.13626)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import groupby
from pathlib import Path

from mt_core import DataError, MtConfig

_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
"""Piece for a byte of a character that the vocabulary lacks."""
_BROKEN = "\ufffd"
_SPECIAL = ("<|begin|>", "<|end|>", "<|pad|>")
"""Names that begin, end and padding have in a Hugging Face tokenizer."""


class ByteConfig(MtConfig):
    """The byte tokenizer has no options."""


class ByteTokenizer:
    """Ids 0-255 are bytes; then come begin, end and padding."""

    bos_id = 256
    eos_id = 257
    pad_id = 258
    size = 259
    chat_template = None

    def encode(self, text: str) -> list[int]:
        """The UTF-8 bytes of the text; raises ``DataError`` on a lone surrogate."""
        return list(utf8(text))

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Each byte with the one character that it belongs to."""
        ids = self.encode(text)
        return ids, [(at, at + 1) for at, character in enumerate(text) for _ in character.encode("utf-8")]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the bytes; special tokens give none, ids above them (of a padded embedding) and broken UTF-8 give U+FFFD."""
        return bytes(min(token, 255) for token in ids if token < 256 or token >= self.size).decode(
            "utf-8", errors="replace"
        )

    def token_bytes(self, token: int) -> bytes | None:
        """Return the byte that a token is; ``None`` for a special one."""
        return bytes([token]) if token < 256 else None

    def save(self, folder: Path) -> None:
        """Write the same tokens as a Hugging Face tokenizer: byte-level BPE without a merge."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
        from transformers import PreTrainedTokenizerFast

        inner = Tokenizer(models.BPE({character: byte for byte, character in enumerate(byte_characters())}, []))
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        inner.decoder = decoders.ByteLevel()
        inner.add_special_tokens(list(_SPECIAL))
        bos, eos, pad = _SPECIAL
        around = {"single": f"{bos} $A", "pair": f"{bos} $A {bos} $B"}
        inner.post_processor = processors.TemplateProcessing(**around, special_tokens=[(bos, self.bos_id)])
        PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=bos, eos_token=eos, pad_token=pad).save_pretrained(
            folder
        )


def bytes_of_piece(piece: str, decoders: Set[str]) -> bytes | None:
    """Return the bytes that a piece of a vocabulary stands for, by the steps of its decoder; ``None`` where these do not say it."""
    if "ByteFallback" in decoders and (byte := _FALLBACK.fullmatch(piece)):
        return bytes.fromhex(byte[1])
    if "ByteLevel" in decoders:
        values = {character: value for value, character in enumerate(byte_characters())}
        return bytes(map(values.__getitem__, piece)) if values.keys() >= set(piece) else None
    return None


def join_bytes(pieces: Iterable[str]) -> Iterator[str]:
    """Give the pieces of a text to a decoder with byte fallback, where neighbours that are bytes are no text together.

    It would decode all of them to U+FFFD, whole characters too. As in SentencePiece each byte alone does, that is no part of one.
    """
    for is_byte, run in groupby(pieces, lambda piece: _FALLBACK.fullmatch(piece) is not None):
        found = list(run)
        content = b"".join(bytes.fromhex(piece[3:5]) for piece in found) if is_byte else b""
        text = _decode(content)
        yield from [text] if _BROKEN in text else found


def _decode(content: bytes) -> str:
    """Return the text of the bytes; U+FFFD for each that is no part of a character."""
    found: list[str] = []
    while True:
        try:
            return "".join([*found, content.decode()])
        except UnicodeDecodeError as error:
            found += [content[: error.start].decode(), _BROKEN * (error.end - error.start)]
            content = content[error.end :]


def byte_characters() -> list[str]:
    """Return what byte-level BPE writes for each byte (https://github.com/openai/gpt-2/blob/master/src/encoder.py)."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = iter(range(256, 512))
    return [chr(byte if byte in shown else next(hidden)) for byte in range(256)]


def utf8(text: str) -> bytes:
    """The text as UTF-8; raises ``DataError`` where it has half of a character."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"character {error.start} of a text is a lone surrogate ({text[error.start]!r}), which is half of a character. "
            f"Write the whole character, or remove it: …{text[max(0, error.start - 20) : error.start]!r}"
        ) from None


def build_byte(config: ByteConfig) -> ByteTokenizer:
    """The byte tokenizer."""
    return ByteTokenizer()
