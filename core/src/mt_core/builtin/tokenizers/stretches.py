"""Characters of each token from the widths of tokens, where a text is nothing but its tokens one after another.

So it is with byte-level BPE and a text of ASCII, whose characters are bytes: the tokenizer's own offsets are these sums, and cost it
a sixth of its time. What else a tokenizer may do to a text is looked for once (``widths``); each text shows that it was right.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from .byte import byte_characters

_SAME_ON_ASCII = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
_SPLITS = frozenset({"Split", "Digits", "Punctuation", "UnicodeScripts"})


class Stretches(Sequence[tuple[int, int]]):
    """Characters of each token of a text, without a gap. ``widths`` are those of every token of the vocabulary."""

    def __init__(self, ids: Sequence[int], widths: NDArray[np.int32]) -> None:
        self._widths = widths[np.frombuffer(struct.pack(f"{len(ids)}i", *ids), np.int32)]  # half the time of np.array

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return self._widths.cumsum()

    def fills(self, text: str) -> bool:
        """Whether the text is nothing but these."""
        return int(self._ends[-1]) == len(text) if len(self._widths) else not text

    def tokens_in(self, start: int, end: int) -> tuple[int, int]:
        """First and last token (beyond) of those with one of these characters."""
        first, last = self._ends.searchsorted((start, end - 1), "right").tolist()
        return first, max(first, min(last + (end > 0), len(self)))

    def __len__(self) -> int:
        return len(self._widths)

    @overload
    def __getitem__(self, number: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, number: slice) -> list[tuple[int, int]]: ...
    def __getitem__(self, number: int | slice) -> Any:
        return list(self)[number]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        ends = self._ends.tolist()
        return zip([0, *ends], ends, strict=False)


def widths(backend: Any) -> NDArray[np.int32] | None:
    """Characters of each token, where texts of ASCII are nothing but their tokens; ``None`` where that is not certain."""
    added = backend.get_added_tokens_decoder()
    if not _keeps_text(backend) or any(token.lstrip or token.rstrip for token in added.values()):
        return None
    vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=False)
    if not vocabulary.keys() >= set(byte_characters()):  # each text can be written: no token is unknown
        return None
    known = vocabulary | {token.content: number for number, token in added.items()}
    found = np.zeros(max(known.values()) + 1, np.int32)
    for text, number in known.items():
        found[number] = len(text)
    return found


def _keeps_text(backend: Any) -> bool:
    """Whether nothing is cut off, put in, replaced, or left out of the offsets. What is not known here may do any of this."""
    from tokenizers import models

    model, before = backend.model, _steps(backend.pre_tokenizer)
    if not isinstance(model, models.BPE) or model.dropout or backend.truncation or backend.padding:
        return False
    return (
        not model.continuing_subword_prefix
        and not model.end_of_word_suffix
        and any(step["type"] == "ByteLevel" for step in before)
        and all(_is_cut(step) for step in before)
        and all(step["type"] in _SAME_ON_ASCII for step in _steps(backend.normalizer))
        and all(_keeps_offsets(step) for step in _steps(backend.post_processor))
    )


def _is_cut(step: dict[str, Any]) -> bool:
    if step["type"] == "ByteLevel":
        return not step["add_prefix_space"]
    return step["type"] in _SPLITS and step.get("behavior") != "Removed"


def _keeps_offsets(step: dict[str, Any]) -> bool:
    """A template adds special tokens only, and only where it is asked to."""
    return step["type"] == "TemplateProcessing" or (step["type"] == "ByteLevel" and not step["trim_offsets"])


def _steps(part: Any) -> list[dict[str, Any]]:
    """A part of a tokenizer, or those that it is made of, as ``tokenizer.json`` has them."""
    return _listed(json.loads(part.__getstate__())) if part is not None else []


def _listed(step: dict[str, Any]) -> list[dict[str, Any]]:
    if step["type"] != "Sequence":
        return [step]
    inner = next(value for value in step.values() if isinstance(value, list))
    return [each for one in inner for each in _listed(one)]
