"""Samples as people read them: which text is trained on, special tokens spelt out, nothing that a terminal would obey."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from mt_core.data.encoded import EncodedSamples
from mt_core.protocols import Sample, Tokenizer

LETTERS = 4000
"""Characters of one sample that are shown."""

_SPECIAL = ("bos", "eos", "pad")
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
"""Control characters as their Unicode pictures."""


@dataclass(frozen=True)
class Part:
    """A stretch of a sample, and whether a loss is taken on it."""

    text: str
    trained: bool


def examples(samples: EncodedSamples, tokenizer: Tokenizer, count: int) -> Iterator[dict[str, Any]]:
    """``count`` samples from all over the split, in order, as plain data."""
    count = min(count, len(samples))
    for number in (place * len(samples) // count for place in range(count)):
        sample = samples[number]
        parts = [{"text": part.text, "trained": part.trained} for part in shown(parts_of(sample, tokenizer))]
        tokens = {"tokens": len(sample.ids), "tokens_trained": int(sum(map(bool, sample.trained[1:])))}
        yield {"row_id": sample.row_id, **tokens, "parts": parts}


def parts_of(sample: Sample, tokenizer: Tokenizer) -> Iterator[Part]:
    """The sample as text. The first token is never predicted, so it is never trained on."""
    flags = [False, *map(bool, sample.trained[1:])]
    for trained, group in groupby(zip(sample.ids, flags, strict=True), key=lambda pair: pair[1]):
        yield Part(_spelt([int(token) for token, _ in group], tokenizer).translate(_VISIBLE), trained)


def _spelt(ids: list[int], tokenizer: Tokenizer) -> str:
    """The text with its special tokens: as the tokenizer spells them, or by what they are for (``<eos>``)."""
    if spell := getattr(tokenizer, "show", None):
        return str(spell(ids))
    special = {getattr(tokenizer, f"{name}_id"): f"<{name}>" for name in reversed(_SPECIAL)}
    pieces = groupby(ids, key=special.get)
    return "".join(tokenizer.decode(list(group)) if name is None else name * len(list(group)) for name, group in pieces)


def shown(parts: Iterator[Part]) -> Iterator[Part]:
    """The first ``LETTERS`` characters."""
    room = LETTERS
    for part in parts:
        if len(part.text) > room:
            yield Part(part.text[:room] + " …", part.trained)
            return
        yield part
        room -= len(part.text)
