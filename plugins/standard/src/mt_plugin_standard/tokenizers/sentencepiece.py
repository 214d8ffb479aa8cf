"""SentencePiece models, ``tokenizer.model`` (https://arxiv.org/abs/1808.06226, https://github.com/google/sentencepiece)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate
from os.path import expanduser
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from mt_core import DataError, MtConfig, MtError
from mt_plugin_standard.tokenizers.file_check import check_tokenizer

from .byte import bytes_of_piece, utf8

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

FILE_NAME = "tokenizer.model"
CONFIG_NAME = "tokenizer_config.json"


class SentencePieceConfig(MtConfig):
    """File of the model."""

    path: str = Field(min_length=1, description="SentencePiece model file, or a folder with a tokenizer.model")


class SentencePieceTokenizer:
    """A SentencePiece model. Text that looks like a special token (``<s>``) stays plain text."""

    chat_template = None

    def __init__(self, processor: SentencePieceProcessor, *, begins: bool = True) -> None:
        """``begins`` where the begin token stands in front of a text."""
        self._processor = processor
        self.size: int = processor.get_piece_size()
        self.bos_id = _id_or_none(processor.bos_id())
        self.eos_id = _id_or_none(processor.eos_id())
        self.pad_id = _id_or_none(processor.pad_id())
        self.begin_ids = () if self.bos_id is None or not begins else (self.bos_id,)
        self.special_texts = tuple(processor.id_to_piece(n) for n in range(self.size) if processor.is_control(n))

    def encode(self, text: str) -> list[int]:
        """Ids of the text; raises ``DataError`` on a lone surrogate."""
        utf8(text)
        ids: list[int] = self._processor.encode(text)
        return ids

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids with characters of the text before normalisation. The library counts bytes.

        Where several pieces share one character (byte fallback, a ligature taken apart), the last one has it and the
        others are empty; so is the ``▁`` that is put in front of a text.
        """
        width = [len(character.encode("utf-8")) for character in text] if utf8(text) else []
        character_of = {byte: at for at, byte in enumerate(accumulate(width, initial=0))}
        pieces = self._processor.encode(text, return_type="proto").pieces
        return [piece.id for piece in pieces], [
            (character_of[piece.begin], character_of[piece.end]) for piece in pieces
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; ids beyond the vocabulary (of a padded embedding) read as the unknown token."""
        unknown = self._processor.unk_id()
        text: str = self._processor.decode([token if 0 <= token < self.size else unknown for token in ids])
        return text

    def token_bytes(self, token: int) -> bytes | None:
        """Return the byte of a character that the model lacks; ``None`` for every other token."""
        is_byte = 0 <= token < self.size and self._processor.is_byte(token)
        return bytes_of_piece(self._processor.id_to_piece(token), {"ByteFallback"}) if is_byte else None

    def pieces(self) -> dict[int, str]:
        """Return what the vocabulary has under each id."""
        return {number: self._processor.id_to_piece(number) for number in range(self.size)}

    def save(self, folder: Path) -> None:
        """Write the model file under its usual name, and where it has the form of one, a Hugging Face tokenizer beside it."""
        from transformers import PreTrainedTokenizerFast

        from .begin import set_begin
        from .sentencepiece_json import as_tokenizer

        serialized = self._processor.serialized_model_proto()
        (folder / FILE_NAME).write_bytes(serialized)
        if (inner := as_tokenizer(serialized)) is None:
            return
        ids = {"bos_token": self.bos_id, "eos_token": self.eos_id, "pad_token": self.pad_id}
        ids["unk_token"] = _id_or_none(self._processor.unk_id())
        named = {key: self._processor.id_to_piece(token) for key, token in ids.items() if token is not None}
        theirs = PreTrainedTokenizerFast(tokenizer_object=inner, clean_up_tokenization_spaces=False, **named)
        set_begin(theirs, named.get("bos_token") if self.begin_ids else None)
        theirs.save_pretrained(folder)


def build_sentencepiece(config: SentencePieceConfig) -> SentencePieceTokenizer:
    """The tokenizer of a model file; raises ``DataError`` when it is missing, ``MtError`` when it is not a model."""
    from sentencepiece import SentencePieceProcessor

    file = _model_file(Path(expanduser(config.path)))
    try:
        check_tokenizer([file], "sentencepiece", file)
        processor = SentencePieceProcessor(model_file=str(file))
    except (RuntimeError, OSError, MtError) as error:
        raise MtError(
            f"{file.absolute()} is not a SentencePiece model ({error}). "
            "Llama 3's tokenizer.model is a tiktoken file: choose the tokenizer of its family for that one."
        ) from error
    return SentencePieceTokenizer(processor, begins=_begins(file.parent / CONFIG_NAME))


def _begins(beside: Path) -> bool:
    """Return whether texts begin with the begin token, as Meta's do: unless the config beside the model says ``add_bos_token: false``.

    Raises ``MtError`` for a config that is no JSON.
    """
    if not beside.is_file():
        return True
    try:
        content = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MtError(f"{beside.absolute()} cannot be read as JSON ({error}); repair it, or remove it") from error
    return not isinstance(content, dict) or content.get("add_bos_token") is not False


def _model_file(path: Path) -> Path:
    file = path / FILE_NAME if path.is_dir() else path
    if not file.is_file():
        has_json = path.is_dir() and (path / "tokenizer.json").is_file()
        hint = (
            "It has a tokenizer.json: use --tokenizer huggingface."
            if has_json
            else "Set tokenizer.path to a tokenizer.model or its folder."
        )
        raise DataError(f"{file.absolute()} does not exist. {hint}")
    return file


def _id_or_none(token: int) -> int | None:
    """SentencePiece says -1 for a token that it does not have."""
    return None if token < 0 else token
