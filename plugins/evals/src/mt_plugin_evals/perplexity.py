"""Perplexity and bits per byte of documents, in windows.

Windows are those of lm-evaluation-harness 0.4.13: disjoint, or moved by a stride (https://huggingface.co/docs/transformers/perplexity).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, field_validator

from mt_core import DataError, Dataset, PartChoice, Row, UsageError
from mt_core.evaluation import Continuation, EvaluationConfig, Findings, Subject

from .naming import named_dataset
from .pairs import PairEncoder

_SHOWN = 60
"""Characters of a value that a message shows."""


class PerplexityConfig(EvaluationConfig):
    """Documents, and how they are cut."""

    rows: dict[str, Any] = Field(description="dataset of the documents: {name, options …}")
    column: str = Field("text", min_length=1, description="field of a row that is the document")
    window: int | None = Field(None, ge=2, description="longest context (tokens); without it the model's")
    stride: int | None = Field(
        None,
        ge=1,
        description="tokens by which windows move: later ones see what came before; without it they are disjoint",
    )
    limit: int | None = Field(None, ge=1, description="documents, the first ones; without it all")

    @field_validator("rows")
    @classmethod
    def _dataset_is_named(cls, value: dict[str, Any]) -> dict[str, Any]:
        return named_dataset(value, "rows")

    def parts(self) -> dict[str, PartChoice]:
        """Return the dataset."""
        return {"rows": PartChoice.of(self.rows, kind="dataset")}


@dataclass(frozen=True)
class Document:
    """A document and what is asked of it: ``requests`` are windows, ``tokens`` all that they score."""

    id: str
    text: str
    requests: list[Continuation]

    @property
    def tokens(self) -> int:
        return sum(len(request.target) for request in self.requests)

    @property
    def words(self) -> int:
        return len(re.split(r"\s+", self.text))

    @property
    def bytes(self) -> int:
        return len(self.text.encode("utf-8"))


class Perplexity:
    """Scores every token of every document once."""

    def __init__(self, config: PerplexityConfig, rows: Dataset) -> None:
        self._config = config
        count = len(rows) if config.limit is None else min(len(rows), config.limit)
        self._texts = [_text(rows.row(index), config.column) for index in range(count)]
        if not any(text for _, text in self._texts):
            raise DataError(f"there is nothing to ask: all of {count} documents are empty. Check rows and column.")

    def check(self, subject: Subject) -> None:
        """Raise ``UsageError`` for a window that does not fit, and for a tokenizer that can begin no document."""
        self._window(subject)
        PairEncoder(subject.tokenizer, subject.eos_ids).start()

    def run(self, subject: Subject) -> Findings:
        """Score all windows of all documents at once."""
        documents = [*self._documents(subject)]
        scores = iter(subject.score([request for each in documents for request in each.requests]))
        sums = [math.fsum(next(scores).logprob for _ in each.requests) for each in documents]
        empty = len(self._texts) - len(documents)
        return _findings(documents, sums, empty, self._signature(subject))

    def _documents(self, subject: Subject) -> Iterator[Document]:
        window = self._window(subject)
        stride = self._config.stride or window
        encoder = PairEncoder(subject.tokenizer, subject.eos_ids)
        start = encoder.start()
        texts = [(place, text) for place, text in self._texts if text]
        for (place, text), ids in zip(texts, encoder.texts([text for _, text in texts]), strict=True):
            if ids:
                yield Document(place, text, [*windows(ids, start, window=window, stride=stride)])

    def _window(self, subject: Subject) -> int:
        window, stride = self._config.window or subject.max_seq_len, self._config.stride
        if window > subject.max_seq_len:
            raise UsageError(
                f"window is {window} tokens, and the context of the model {subject.max_seq_len}. Lower window, or leave it out."
            )
        if stride is not None and stride > window:
            raise UsageError(f"stride is {stride} tokens, and a window has {window}. Lower stride.")
        return window

    def _signature(self, subject: Subject) -> str:
        window = self._window(subject)
        how = "disjoint" if self._config.stride is None else f"moved by {self._config.stride}"
        return f"windows of {window} tokens, {how}"


def windows(ids: Sequence[int], start: Sequence[int], *, window: int, stride: int) -> Iterator[Continuation]:
    """Cut a document: each id is scored once, and the model reads at most ``window`` ids for it.

    The first window scores as many as it can after ``start``; each later one ``stride`` more, after all that still fits before them.
    """
    done = min(len(ids), window - len(start) + 1)
    yield Continuation(start, ids[:done])
    whole, begin = [*start, *ids], len(start)
    while done < len(ids):
        end = min(len(ids), done + stride)
        yield Continuation(whole[max(0, begin + end - window - 1) : begin + done], ids[done:end])
        done = end


def build_perplexity(config: PerplexityConfig, *, split: str, parts: Sequence[Dataset]) -> Perplexity:
    """Build the evaluation."""
    return Perplexity(config, parts[0])


def _text(row: Row, column: str) -> tuple[str, str]:
    value = row.get(column)
    if not isinstance(value, str):
        known = ", ".join(key for key, each in row.items() if isinstance(each, str) and key != "id") or "none"
        raise DataError(
            f"{row['id']}: {column} is {repr(value)[:_SHOWN]}, not a text; texts of this row are {known}. Name one with the option column."
        )
    return str(row["id"]), value


def _findings(documents: Sequence[Document], sums: Sequence[float], empty: int, signature: str) -> Findings:
    total = math.fsum(sums)
    counts = {
        "tokens": sum(each.tokens for each in documents),
        "words": sum(each.words for each in documents),
        "bytes": sum(each.bytes for each in documents),
    }
    figures = _perplexities(total, counts)
    notes = [f"{len(documents)} documents: {', '.join(f'{count:,} {name}' for name, count in counts.items())}"]
    notes += [f"{empty} documents are empty and were left out"] if empty else []
    return Findings(
        figures=figures,
        rows=[
            {
                "id": each.id,
                "logprob": value,
                "tokens": each.tokens,
                "words": each.words,
                "bytes": each.bytes,
                "bits_per_byte": -value / each.bytes / math.log(2),
            }
            for each, value in zip(documents, sums, strict=True)
        ],
        signatures={"perplexity": signature},
        notes=notes,
    )


def _perplexities(total: float, counts: Mapping[str, int]) -> dict[str, float]:
    """Return the perplexities by token, word and byte; one that is beyond what a float holds is left out."""
    names = {"perplexity": "tokens", "word_perplexity": "words", "byte_perplexity": "bytes"}
    nats = {name: -total / counts[count] for name, count in names.items()}
    found = {name: math.exp(value) for name, value in nats.items() if value < _MOST_NATS}
    return {**found, "bits_per_byte": nats["byte_perplexity"] / math.log(2)}


_MOST_NATS = 700
"""exp of more is no float."""
