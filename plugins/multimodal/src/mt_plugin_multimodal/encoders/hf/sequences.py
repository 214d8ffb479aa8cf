"""Sequences of letters to the ids of an encoder's tokenizer. Torch is not imported.

Shapes: L tokens of an item.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mt_core import DataError, UsageError, WeightsError
from mt_core.files import panics
from mt_core.media import Measured, MediaItem, MediaPart
from mt_core.weights import contained_file, read_json

from ...content import digest_of, read_content, require_same

_TOKENIZER, _WORDS, _SAID = "tokenizer.json", "vocab.txt", "tokenizer_config.json"
_UNKNOWN, _END = "<unk>", "<eos>"


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Letters to ids. ``front`` and ``behind`` stand around each item; ``unknown`` is the id of what the vocabulary has not."""

    front: tuple[int, ...]
    behind: tuple[int, ...]
    unknown: int | None

    def encode(self, text: str) -> list[int]:
        """Return the ids of the text alone."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class TokenizerVocabulary(Vocabulary):
    """The vocabulary of a ``tokenizer.json``."""

    tokenizer: Any

    def encode(self, text: str) -> list[int]:
        """Return the ids of the text alone."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)


@dataclass(frozen=True, kw_only=True)
class WordVocabulary(Vocabulary):
    """One token is the longest word of a list that the rest of the text begins with: a letter in ESM-2, most often six bases in Nucleotide
    Transformer."""

    ids: Mapping[str, int]

    def encode(self, text: str) -> list[int]:
        """Return the ids of the text alone."""
        ids, found, place = self.ids, list[int](), 0
        while place < len(text):
            length = next((each for each in self._lengths if text[place : place + each] in ids), 1)
            found.append(ids.get(text[place : place + length], ids[_UNKNOWN]))
            place += length
        return found

    @cached_property
    def _lengths(self) -> list[int]:
        """Lengths of words, the longest first."""
        return sorted({len(word) for word in self.ids}, reverse=True)


def read_vocabulary(folder: Path) -> Vocabulary:
    """Return the vocabulary of a folder: ``tokenizer.json``, or ``vocab.txt`` with a word a line and ESM's special tokens."""
    if (folder / _TOKENIZER).is_file():
        return _of_tokenizer(contained_file(folder, _TOKENIZER))
    if (folder / _WORDS).is_file():
        return _of_words(contained_file(folder, _WORDS), folder)
    raise WeightsError(
        f"{folder} has neither {_TOKENIZER} nor {_WORDS}; save its tokenizer there (tokenizer.save_pretrained)"
    )


def _of_tokenizer(file: Path) -> Vocabulary:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UsageError(
            "tokenizer.json needs the package tokenizers: pip install 'mt-plugin-multimodal[hf]'"
        ) from error
    try:
        tokenizer = Tokenizer.from_str(file.read_text("utf-8"))
    except BaseException as error:  # the Rust side raises bare Exceptions, and panics, whose class comes with the first
        if not isinstance(error, (Exception, *panics())):
            raise
        raise WeightsError(f"cannot read {file}: {error}; fetch it again") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    frame = tokenizer.encode("A")
    inner = [place for place, special in enumerate(frame.special_tokens_mask) if not special] or [len(frame.ids)]
    return TokenizerVocabulary(
        tokenizer=tokenizer,
        front=tuple(frame.ids[: inner[0]]),
        behind=tuple(frame.ids[inner[-1] + 1 :]),
        unknown=tokenizer.token_to_id(str(getattr(tokenizer.model, "unk_token", None))),
    )


def _of_words(file: Path, folder: Path) -> Vocabulary:
    """The words of ESM, whose tokenizer puts ``<cls>`` in front and ``<eos>`` behind, unless ``tokenizer_config.json`` says null."""
    ids = {word: number for number, word in enumerate(file.read_text("utf-8").split())}
    said = read_json(contained_file(folder, _SAID)) if (folder / _SAID).is_file() else {}
    behind = () if said.get("eos_token", _END) is None else (_END,)
    if missing := [word for word in ("<cls>", *behind, _UNKNOWN) if word not in ids]:
        raise WeightsError(f"{file} has no {missing[0]}, and is no vocabulary of ESM; save {_TOKENIZER} beside it")
    words = {word: number for word, number in ids.items() if word == _UNKNOWN or not word.startswith("<")}
    return WordVocabulary(
        ids=words, front=(ids["<cls>"],), behind=tuple(ids[word] for word in behind), unknown=ids[_UNKNOWN]
    )


@dataclass(frozen=True, kw_only=True)
class _Read:
    ids: list[int]
    features: int


class SequenceProcessor:
    """Reads sequences: ``ids`` of all items one after another, special tokens too. An item has ``features`` without those, unless they
    are kept. The encoder has as many ``rows`` for tokens; ``None`` where its config does not say."""

    def __init__(self, vocabulary: Vocabulary, *, longest: int, keep_special: bool, rows: int | None = None) -> None:
        self.vocabulary, self.longest, self.keep_special, self.rows = vocabulary, longest, keep_special, rows

    def measure(self, part: MediaPart) -> Measured:
        """Return features and digest. Raises ``DataError`` for a letter that the tokenizer has not, and for too many tokens."""
        place = part.place or part.path or "the sequence"
        content = read_content(part.path, part.content, place)
        return Measured(self._read(content, place).features, None, digest_of(content))

    def read(self, item: MediaItem) -> Mapping[str, NDArray[np.generic]]:
        """Return ``ids`` (L). Raises ``DataError`` for another content than was measured."""
        place = item.path or "a sequence of a row"
        content = read_content(item.path, item.content, place)
        require_same(content, item.digest, place)
        return {"ids": np.array(self._read(content, place).ids, np.int64)}

    def describe(self, item: MediaItem) -> str:
        """Say how long a sequence is. Raises ``DataError`` where its file cannot be read any more."""
        content = read_content(item.path, item.content, item.path or "a sequence of a row")
        return f"sequence, {len(content.strip()):,} letters"

    def dummy(self) -> tuple[Measured, Mapping[str, NDArray[Any]]]:
        """Return one token, in special ones."""
        vocabulary = self.vocabulary
        ids = [*vocabulary.front, (vocabulary.behind or vocabulary.front or (0,))[0], *vocabulary.behind]
        return Measured(len(ids) if self.keep_special else 1, None, b""), {"ids": np.array(ids, np.int64)}

    def _read(self, content: bytes, place: str) -> _Read:
        try:
            text = content.decode("ascii").strip()
        except UnicodeDecodeError as error:
            raise DataError(f"{place} has something else than letters; write a sequence as ASCII letters") from error
        own = self.vocabulary.encode(text)
        if not own:
            raise DataError(f"{place} is an empty sequence; leave the row out")
        if self.vocabulary.unknown is not None and self.vocabulary.unknown in own:
            raise DataError(
                f"{place} has letters that the encoder's tokenizer has not: {text[:40]!r}; correct it, or leave the row out"
            )
        ids = [*self.vocabulary.front, *own, *self.vocabulary.behind]
        if len(ids) > self.longest:
            raise DataError(
                f"{place} has {len(ids):,} tokens, and the encoder reads {self.longest:,}; cut it into pieces"
            )
        if self.rows is not None and max(ids) >= self.rows:
            raise DataError(
                f"{place} has the token id {max(ids):,}, and the encoder has rows for {self.rows:,} tokens (vocab_size of config.json);"
                " put the tokenizer beside it that it was trained with"
            )
        return _Read(ids=ids, features=len(ids) if self.keep_special else len(own))
