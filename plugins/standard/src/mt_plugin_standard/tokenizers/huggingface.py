"""Hugging Face tokenizers: a ``tokenizer.json``, or a folder as ``save_pretrained`` writes it.

Read from disk only; code that a folder brings along is never run.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from os.path import expanduser
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from mt_core import DataError, MtError
from mt_core.weights import RowInit

from .additions import add_tokens, grown_size
from .begin import ALWAYS, AUTO, NONE, begin_of, set_begin
from .byte import bytes_of_piece, join_bytes, utf8
from .faults import catch_panics, panics, try_once
from .huggingface_config import HuggingFaceConfig

if TYPE_CHECKING:
    from .token_offsets import TokenByteLengths
    from .words import Words

FILE_NAME = "tokenizer.json"
CONFIG_NAME = "tokenizer_config.json"

_BESIDE = (FILE_NAME, CONFIG_NAME, "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")
"""Files of any tokenizer; those of its vocabulary are named by its class."""
_WORDS = (AUTO, ALWAYS, NONE)
_NAMED = ("bos_token", "eos_token", "pad_token")
_READING = Lock()
"""One thread reads at a time: a tokenizer keeps whether special tokens are text, and rows of a stream are encoded in the background."""


class HuggingFaceTokenizer:
    """A tokenizer of ``transformers``. ``encode`` reads special tokens that a text spells out, as rendered chats have them.

    ``encode_text`` and ``encode_many`` read them as the characters that they are, unless ``parse_specials``.
    """

    def __init__(
        self,
        inner: Any,
        source: Path,
        added: Mapping[int, tuple[int, ...]],
        init: RowInit,
        *,
        parse_specials: bool = False,
        as_found: bool = False,
    ) -> None:
        """``as_found`` where it is what its files say, with nothing added and no token named otherwise."""
        self._inner = inner
        self.parse_specials = parse_specials
        self.added, self.init = added, init
        """New tokens, what each was read as before, and how their rows begin."""
        self._source, self._as_found = source, as_found
        self.begin_ids = begin_of(inner)
        self.size: int = max(inner.get_vocab().values()) + 1
        self.bos_id: int | None = inner.bos_token_id
        self.eos_id: int | None = inner.eos_token_id
        self.pad_id: int | None = inner.pad_token_id
        self.chat_template: str | None = inner.chat_template
        # a chat template writes these names; encode() reads what it wrote as the special tokens
        named = inner.special_tokens_map.items()
        self.special_tokens: dict[str, str] = {name: token for name, token in named if isinstance(token, str)}
        known = inner.added_tokens_decoder.values()
        self.special_texts: tuple[str, ...] = tuple(
            dict.fromkeys([*inner.all_special_tokens, *(token.content for token in known if token.special)])
        )
        ids = inner.convert_tokens_to_ids(list(self.special_texts))
        self.special_ids: dict[str, int] = dict(zip(self.special_texts, ids, strict=True))

    @catch_panics
    def encode(self, text: str) -> list[int]:
        """Ids of the text; raises ``DataError`` on a lone surrogate."""
        return self._read(text)["input_ids"]  # type: ignore[no-any-return]

    @catch_panics
    def encode_literally(self, text: str) -> list[int]:
        """Ids of the text, where a special token that it spells is read as the characters that it is."""
        return self._read(text, split_special_tokens=True)["input_ids"]  # type: ignore[no-any-return]

    def _read(self, text: str, **wishes: bool) -> Any:
        utf8(text)
        with _READING:
            return self._inner(text, add_special_tokens=False, verbose=False, **wishes)

    def encode_text(self, text: str) -> list[int]:
        """Ids of what a row says."""
        return self.encode(text) if self.parse_specials else self.encode_literally(text)

    @catch_panics
    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Return what ``encode_text`` gives for each, without the offsets that nobody asked for: 2 to 4 times as fast as one by one."""
        if not self._inner.is_fast:
            return [self.encode_text(text) for text in texts]
        return self._encode_many(texts, [self._is_plain(text) for text in texts], literally=not self.parse_specials)

    def _encode_many(self, texts: Sequence[str], plain: Sequence[bool], *, literally: bool) -> list[list[int]]:
        """Ids, of ``plain`` texts out of known words where that can be."""
        found: list[list[int] | None] = [None] * len(texts)
        with _READING:
            if self._words is not None:
                for at, is_plain in enumerate(plain):
                    found[at] = self._words.ids(texts[at], literally=literally) if is_plain else None
            backend = self._inner.backend_tokenizer
            backend.encode_special_tokens = literally  # what was asked before stays set otherwise
            others = [text for text, ids in zip(texts, found, strict=True) if ids is None]
            read = iter(backend.encode_batch_fast(others, add_special_tokens=False) if others else ())
        return [next(read).ids if ids is None else ids for ids in found]

    def _is_plain(self, text: str) -> bool:
        """Return whether its tokens are as wide as they say. Raises ``DataError`` on a lone surrogate."""
        if self._widths is None:
            utf8(text)
            return False
        return self._widths.hold_for(text)

    @catch_panics
    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids with their characters; several ids of one character all have it. Raises ``MtError`` for a slow tokenizer."""
        self._refuse_slow()
        encoded = self._read(text, return_offsets_mapping=True)
        return encoded["input_ids"], [tuple(pair) for pair in encoded["offset_mapping"]]

    @catch_panics
    def encode_many_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], Sequence[tuple[int, int]]]]:
        """See ``ManyOffsets``. Raises ``MtError`` for a slow tokenizer."""
        self._refuse_slow()
        plain = [self._is_plain(text) for text in texts]
        pairs = list(zip(texts, plain, strict=True))
        summed = iter(self._sum_offsets([text for text, is_plain in pairs if is_plain]))
        others = iter(self._with_offsets([text for text, is_plain in pairs if not is_plain]))
        return [next(summed if is_plain else others) for is_plain in plain]

    def _sum_offsets(self, texts: Sequence[str]) -> Iterator[tuple[list[int], Sequence[tuple[int, int]]]]:
        """Ids alone, and offsets that are sums of widths."""
        from .token_offsets import TokenOffsets  # numpy loads here, not when plugins are listed

        if self._widths is None or not texts:
            return
        for text, ids in zip(texts, self._encode_many(texts, [True] * len(texts), literally=False), strict=True):
            stretches = TokenOffsets(text, ids, self._widths)
            yield (ids, stretches) if stretches.fill else self.encode_with_offsets(text)

    def _with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], Sequence[tuple[int, int]]]]:
        from .token_offsets import LazyOffsets

        if not texts:
            return []
        backend = self._inner.backend_tokenizer
        with _READING:
            backend.encode_special_tokens = False  # see _many()
            found = backend.encode_batch(list(texts), add_special_tokens=False)
        return [(each.ids, LazyOffsets(each)) for each in found]

    @cached_property
    def _widths(self) -> TokenByteLengths | None:
        from .token_offsets import token_byte_lengths

        return token_byte_lengths(self._inner.backend_tokenizer)

    @cached_property
    def _words(self) -> Words | None:
        from .words import words

        return words(self._inner.backend_tokenizer, self._widths)

    def _refuse_slow(self) -> None:
        if not self._inner.is_fast:
            raise MtError(
                f"{self._source.absolute()} is a {type(self._inner).__name__}, a tokenizer in Python that knows no offsets. "
                f"Use one that has a {FILE_NAME}."
            )

    @catch_panics
    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; special tokens, and ids beyond the vocabulary (of a padded embedding), give none."""
        text: str = self._inner.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        if "\ufffd" in text and self._inner.is_fast and "ByteFallback" in self._decoders:
            pieces = self._inner.convert_ids_to_tokens(list(ids), skip_special_tokens=True)
            text = self._inner.backend_tokenizer.decoder.decode([*join_bytes(filter(None, pieces))])
        return text

    @catch_panics
    def show(self, ids: Sequence[int]) -> str:
        """Decode as ``decode`` does, with the special tokens spelt out: for people who look at a sample."""
        text: str = self._inner.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def token_bytes(self, token: int) -> bytes | None:
        """Return the bytes of a token whose decoder says them, also where they are a part of a character; ``None`` for any other."""
        if token in self._inner.added_tokens_decoder or not self._inner.is_fast:
            return None
        piece = self._inner.convert_ids_to_tokens(token)
        return None if piece is None else bytes_of_piece(piece, self._decoders)

    @cached_property
    def _decoders(self) -> frozenset[str]:
        from .token_offsets import steps

        return frozenset(step["type"] for step in steps(self._inner.backend_tokenizer.decoder))

    def pieces(self) -> dict[int, str]:
        """Return what the vocabulary has under each id."""
        return {number: piece for piece, number in sorted(self._inner.get_vocab().items(), reverse=True)}

    @catch_panics
    def save(self, folder: Path) -> None:
        """Write the files that ``from_pretrained`` reads: those that it was read from where it is what they say."""
        if not self._as_found:
            self._inner.save_pretrained(folder)
            return
        for name in dict.fromkeys([*_BESIDE, *self._inner.vocab_files_names.values()]):
            if (self._source / name).is_file():
                shutil.copyfile(self._source / name, folder / name)


def build_huggingface(config: HuggingFaceConfig) -> HuggingFaceTokenizer:
    """The tokenizer at a path; raises ``DataError`` when there is none, ``MtError`` when it cannot be read."""
    source = _source(Path(expanduser(config.path)))
    named = {key: value for key in ("bos_token", "eos_token") if (value := getattr(config, key)) not in _WORDS}
    inner = _load(source, {})
    if named:  # transformers would add an unknown one to the vocabulary, beyond the model's embedding
        _refuse_unknown(named, inner, source)
        inner = _load(source, named)
    added = add_tokens(inner, config.add_tokens, config.special_tokens)
    if config.pad_token not in _WORDS:
        inner.pad_token = config.pad_token
    for key in _NAMED:
        if getattr(config, key) == NONE:
            setattr(inner, key, None)
    if config.bos_token != AUTO:
        set_begin(inner, inner.bos_token)
    as_found = source.is_dir() and not added and all(getattr(config, key) == AUTO for key in _NAMED)
    return HuggingFaceTokenizer(
        inner, source, added, config.init, parse_specials=config.parse_specials, as_found=as_found
    )


def size_with_new_tokens(config: HuggingFaceConfig) -> int | None:
    """See ``TokenizerComponent``."""
    wanted = (*config.add_tokens, *config.special_tokens)
    if not wanted:
        return None
    path = Path(expanduser(config.path))
    return grown_size(path / FILE_NAME if path.is_dir() else path, wanted)


def _load(source: Path, named: dict[str, str]) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try_once(source)
    try:
        if source.is_dir():
            return AutoTokenizer.from_pretrained(str(source), local_files_only=True, trust_remote_code=False, **named)
        return PreTrainedTokenizerFast(tokenizer_file=str(source), **named)
    except BaseException as error:  # the Rust side raises bare Exceptions, and panics, whose class comes with the first
        if not isinstance(error, (Exception, *panics())):
            raise
        raise MtError(f"{source.absolute()} cannot be read as a Hugging Face tokenizer: {error}") from error


def _refuse_unknown(named: dict[str, str], inner: Any, source: Path) -> None:
    known = inner.get_vocab()
    unknown = [f"{value!r} (tokenizer.{key})" for key, value in named.items() if value not in known]
    if unknown:
        raise MtError(
            f"{source.absolute()} has no token {', '.join(unknown)}; name one that is in its vocabulary, or add it with"
            " --tokenizer.add-special-tokens."
        )


def _source(path: Path) -> Path:
    """Return what to load: a folder with its config, or a lone ``tokenizer.json``."""
    if path.is_file():
        beside = path.parent / CONFIG_NAME
        return path.parent if path.name == FILE_NAME and beside.is_file() else path
    if not path.is_dir():
        raise DataError(f"{path.absolute()} does not exist. Set tokenizer.path to a {FILE_NAME} or its folder.")
    if not any((path / name).is_file() for name in (FILE_NAME, CONFIG_NAME)):
        # transformers would guess a class here, and with it other ids than SentencePiece gives
        hint = (
            "It has a tokenizer.model: use --tokenizer sentencepiece."
            if (path / "tokenizer.model").is_file()
            else "Name another folder."
        )
        raise DataError(f"folder {path.absolute()} has neither {FILE_NAME} nor {CONFIG_NAME}. {hint}")
    return path
