"""SentencePiece models, ``tokenizer.model`` (https://arxiv.org/abs/1808.06226, https://github.com/google/sentencepiece)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from mt_core import DataError, MtConfig, MtError

from .byte import utf8

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

FILE_NAME = "tokenizer.model"


class SentencePieceConfig(MtConfig):
    """Where the model is."""

    path: str = Field(min_length=1, description="SentencePiece model file, or a folder with a tokenizer.model")


class SentencePieceTokenizer:
    """A SentencePiece model. Text that looks like a special token (``<s>``) stays plain text."""

    chat_template = None

    def __init__(self, processor: SentencePieceProcessor) -> None:
        self._processor = processor
        self.size: int = processor.get_piece_size()
        self.bos_id = _present(processor.bos_id())
        self.eos_id = _present(processor.eos_id())
        self.pad_id = _present(processor.pad_id())
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

    def save(self, folder: Path) -> None:
        """Write the model file under its usual name."""
        (folder / FILE_NAME).write_bytes(self._processor.serialized_model_proto())


def build_sentencepiece(config: SentencePieceConfig) -> SentencePieceTokenizer:
    """The tokenizer of a model file; raises ``DataError`` when it is missing, ``MtError`` when it is not a model."""
    from sentencepiece import SentencePieceProcessor

    file = _model_file(Path(config.path).expanduser())
    try:
        processor = SentencePieceProcessor(model_file=str(file))
    except (RuntimeError, OSError) as error:
        raise MtError(
            f"{file.absolute()} is not a SentencePiece model ({error}). "
            "Llama 3's tokenizer.model is a tiktoken file: choose the tokenizer of its family for that one."
        ) from error
    return SentencePieceTokenizer(processor)


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


def _present(token: int) -> int | None:
    """SentencePiece says -1 for a token that it does not have."""
    return None if token < 0 else token
