"""Samples as people read them: which text is trained on, special tokens spelt out, nothing that a terminal would obey."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, Protocol, runtime_checkable

from mt_core.protocols import Tokenizer
from mt_core.rows import MediaSpan, Sample
from mt_train.data.samples import EncodedSamples

LETTERS = 4000
"""Characters of one sample that are shown."""

_SPECIAL = ("bos", "eos", "pad")
_VISIBLE = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {0x7F: "\u2421"}
_VISIBLE |= {code: f"<U+{code:04X}>" for code in (*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))}
"""Control characters as their Unicode pictures, and by number what else terminals obey or what turns the text around it."""


@dataclass(frozen=True)
class Part:
    """A stretch of a sample, whether a loss is taken on it, and whether it is special tokens: text may look like them.

    ``document`` says which of several documents of the sample it is a part of; ``picture`` is a small one of media, as a ``data:`` URI.
    """

    text: str
    trained: bool
    special: bool = False
    document: str = ""
    picture: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, without a picture where there is none."""
        return {name: value for name, value in asdict(self).items() if name != "picture" or value}


@runtime_checkable
class NamesDocuments(Protocol):
    """An objective whose samples have several documents, with a name for each, such as ``chosen`` and ``rejected``."""

    document_names: Sequence[str]


def names_of(objective: object, sample: Sample) -> Sequence[str]:
    """Return the names of a sample's documents; numbers where the objective has none for them."""
    names = objective.document_names if isinstance(objective, NamesDocuments) else ()
    count = len(sample.documents)
    return names if len(names) == count else [f"document {number}" for number in range(1, count + 1)]


def examples(
    samples: EncodedSamples, tokenizer: Tokenizer, count: int, objective: object = None
) -> Iterator[dict[str, Any]]:
    """``count`` samples from all over the split, in order, as plain data."""
    count = min(count, len(samples))
    reader = samples.reader
    words = () if reader is None else (reader.describe, reader.picture)
    for number in (place * len(samples) // count for place in range(count)):
        sample = samples[number]
        documents = _documents(sample, names_of(objective, sample))
        parts = [
            replace(part, document=name).as_dict()
            for name, document in documents
            for part in excerpt(parts_of(document, tokenizer, *words))
        ]
        trained = sum(sum(map(bool, document.trained[1:])) for _, document in documents)
        tokens = {"tokens": len(sample.ids), "tokens_trained": int(trained)}
        yield {"row_id": sample.row_id, **tokens, "parts": parts}


def _documents(sample: Sample, names: Sequence[str]) -> list[tuple[str, Sample]]:
    """Each document as a sample, with its name; the sample itself where it is one document."""
    if not sample.documents:
        return [("", sample)]
    parts = [
        Sample(sample.ids[each], sample.trained[each], sample.row_id, media=_within(sample.media, each))
        for each in sample.spans
    ]
    return list(zip(names, parts, strict=True))


def _within(spans: Sequence[MediaSpan], places: slice) -> tuple[MediaSpan, ...]:
    """The media of a document of a sample, with their places in it."""
    return tuple(span.shift(-places.start) for span in spans if places.start <= span.start < places.stop)


def _describe(span: MediaSpan) -> str:
    """Name an item where nobody can look at it."""
    return f"⟨{span.item.encoder} → {span.tokens} tokens⟩"


def _picture(span: MediaSpan) -> str:
    """Show nothing of an item."""
    return ""


def parts_of(
    sample: Sample,
    tokenizer: Tokenizer,
    describe: Callable[[MediaSpan], str] = _describe,
    picture: Callable[[MediaSpan], str] = _picture,
) -> Iterator[Part]:
    """The sample as text, with a word and a picture for each of its media.

    The first token is never predicted, so it is never trained on.
    """
    ids, special = [int(token) for token in sample.ids], _special_names(tokenizer)
    inside = [-1] * len(ids)
    for number, span in enumerate(sample.media):
        inside[span.start : span.start + span.tokens] = [number] * span.tokens
    kinds = zip([False, *map(bool, sample.trained[1:])], (token in special for token in ids), inside, strict=True)
    end, before = 0, ""
    shown: list[int] = []
    for (trained, is_special, number), group in groupby(kinds):
        begin, end = end, end + len(list(group))
        if number >= 0:
            if begin == sample.media[number].start:
                span = sample.media[number]
                yield Part(describe(span), False, True, picture=picture(span))
            continue
        shown += ids[begin:end]
        text = _spell(shown, tokenizer)  # with all before it: alone, a word would lose the space in front
        known = before if text.startswith(before) else before.rstrip("\ufffd")  # half a character may be whole now
        yield Part(text[len(known) :].translate(_VISIBLE), trained, is_special)
        before = text


def _special_names(tokenizer: Tokenizer) -> dict[int, str]:
    """Return how special tokens are spelt: by their names, or by what they are for (``<eos>``)."""
    purposes = {getattr(tokenizer, f"{name}_id"): f"<{name}>" for name in reversed(_SPECIAL)}
    named = {token: name for name, token in getattr(tokenizer, "special_ids", {}).items()}
    return {token: name for token, name in (purposes | named).items() if token is not None}


def _spell(ids: list[int], tokenizer: Tokenizer) -> str:
    """The text with its special tokens."""
    if spell := getattr(tokenizer, "show", None):
        return str(spell(ids))
    special = _special_names(tokenizer)
    pieces = groupby(ids, key=special.get)
    return "".join(tokenizer.decode(list(group)) if name is None else name * len(list(group)) for name, group in pieces)


def excerpt(parts: Iterator[Part], room: int = LETTERS) -> Iterator[Part]:
    """The first ``room`` characters."""
    for part in parts:
        if len(part.text) > room:
            yield replace(part, text=part.text[:room] + " …")
            return
        yield part
        room -= len(part.text)
