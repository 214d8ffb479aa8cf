"""Llama 3's tokenizer: a file of tiktoken ranks, and 256 special tokens after them.

Source: https://github.com/meta-llama/llama-models/blob/main/models/llama3/tokenizer.py (pattern and special tokens).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from mt_core import MtConfig, MtError
from mt_core.files import native_faults

if TYPE_CHECKING:
    from tiktoken import Encoding

PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_NAMED = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
)
SPECIAL_COUNT = 256
SPECIAL = (*_NAMED, *(f"<|reserved_special_token_{2 + n}|>" for n in range(SPECIAL_COUNT - len(_NAMED))))
"""In the order of their ids, as Llama 3.1 has them."""
LONGEST, LONGEST_RUN = 400_000, 25_000
"""Most characters that the library is given at once, and most whitespace, or most other characters, in a row: its stack overflows
on more. Meta's code cuts at the same places."""
_RUNS = re.compile(rf"\s{{1,{LONGEST_RUN}}}|\S{{1,{LONGEST_RUN}}}")


class Llama3TokenizerConfig(MtConfig):
    """File of the ranks."""

    path: str = Field(min_length=1, description="Llama 3's tokenizer.model: one base64 token and its rank a line")


class Llama3Tokenizer:
    """Byte-pair encoding by tiktoken; ``encode`` reads special tokens in a text as plain characters."""

    chat_template: str | None = None

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        first = encoding.n_vocab - SPECIAL_COUNT
        self._first_special = first
        self.size: int = encoding.n_vocab
        self.special_ids = {name: first + number for number, name in enumerate(SPECIAL)}
        """Tokens that a chat template may spell; the core reads these names where the template wrote them, and nowhere else."""
        self.bos_id: int | None = first + SPECIAL.index("<|begin_of_text|>")
        self.eos_id: int | None = first + SPECIAL.index("<|end_of_text|>")
        self.pad_id: int | None = first + SPECIAL.index("<|finetune_right_pad_id|>")

    def encode(self, text: str) -> list[int]:
        """Ids of the text alone."""
        with native_faults("the tokenizer of Llama 3"):
            return [token for piece in _pieces(text) for token in self._encoding.encode_ordinary(piece)]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids and the characters that each begins in; one that holds the rest of a character has that character's start."""
        ids = self.encode(text)
        _, starts = self._encoding.decode_with_offsets(ids)
        ends = [*starts[1:], len(text)] if starts else []
        return ids, list(zip(starts, ends, strict=True))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; special tokens give none."""
        return str(self._encoding.decode([token for token in ids if token < self._first_special], errors="replace"))

    def token_bytes(self, token: int) -> bytes | None:
        """Return the bytes of a token, also where they are a part of a character; ``None`` for a special one."""
        return self._encoding.decode_single_token_bytes(token) if 0 <= token < self._first_special else None


def _pieces(text: str) -> Iterator[str]:
    """Yield the text in the pieces that are encoded by themselves; a short one is its only piece."""
    for start in range(0, len(text), LONGEST):
        piece, cut, before = text[start : start + LONGEST], 0, ""
        for run in _RUNS.finditer(piece) if len(piece) > LONGEST_RUN else ():
            if len(before) == LONGEST_RUN and before[0].isspace() == run[0][0].isspace():
                yield piece[cut : run.start()]
                cut = run.start()
            before = run[0]
        yield piece[cut:]


def build_llama3_tokenizer(config: Llama3TokenizerConfig) -> Llama3Tokenizer:
    """Read the ranks; tiktoken is given them directly, so that it never looks for a file on the network."""
    from tiktoken import Encoding

    path = Path(config.path)
    ranks = _ranks(path)
    special = {name: len(ranks) + number for number, name in enumerate(SPECIAL)}
    return Llama3Tokenizer(Encoding(path.stem, pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special))


def _ranks(path: Path) -> dict[bytes, int]:
    if path.exists() and not path.is_file():
        raise MtError(f"{path} is no file; set tokenizer.path to Llama 3's tokenizer.model")
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise MtError(
            f"cannot read {path}: {error.strerror}; set tokenizer.path to Llama 3's tokenizer.model"
        ) from error
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(filter(None, lines), 1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise MtError(
                f"{path}:{number}: not a base64 token and its rank; is this a SentencePiece file? Then set --tokenizer sentencepiece"
            ) from error
    if sorted(ranks.values()) != list(range(len(ranks))) or len(ranks) < SPECIAL_COUNT:
        raise MtError(f"{path} has {len(ranks)} ranks that are not 0, 1, 2 … in full; fetch the file again")
    if lacking := [byte for byte in range(256) if bytes([byte]) not in ranks]:  # the library does not survive that
        raise MtError(f"{path} has no token for the byte 0x{lacking[0]:02x}; fetch the file again")
    return ranks
