"""Statistics of the rows of a split: counts that add up, and the first places of each kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mt_core.rows import Sample
from mt_train.data.media.named_files import stamp

PLACES = 5
"""Rows of a kind that are named."""

BAD_ROW, NO_TRAINED_TOKEN = "bad row", "no trained token"
TRUNCATED, NO_STOP, NO_BEGIN, TWO_BEGINS = "truncated", "no stop token", "no begin token", "two begin tokens in a row"
SPELLING, NO_MEDIA = "special tokens as text", "a place for media, and none"
PLAIN_TEXT = "as plain text"
DUPLICATE, ALSO_TRAINED = "duplicate", "also trained on"


@dataclass
class RowStatistics:
    """Statistics of the rows of one split. Those of parts add up; ``measures`` adds what only the whole shows."""

    is_prefix: bool = False
    """Whether these are the first rows of a stream only."""
    rows_read: int = 0
    rows_kept: int = 0
    rows_dropped: Counter[str] = field(default_factory=Counter)
    rows_split: int = 0
    rows_truncated: int = 0
    samples: int = 0
    tokens_total: int = 0
    tokens_trained: int = 0
    tokens_cut: int = 0
    """Tokens that truncation took, of which ``trained_cut`` would have been trained on."""
    trained_cut: int = 0
    source_rows: Counter[str] = field(default_factory=Counter)
    """Rows kept of each source of a mixed dataset, by its name; their tokens, and those of them that are trained on."""
    source_tokens: Counter[str] = field(default_factory=Counter)
    source_trained: Counter[str] = field(default_factory=Counter)
    source_samples: list[tuple[str, int]] = field(default_factory=list)
    """Samples of each such source, in the order of the samples: how many in a row are of which."""
    lengths: Counter[int] = field(default_factory=Counter)
    """Samples of at most so many tokens, and more than half as many: powers of two."""
    longest: int = 0
    answers_total: Counter[int] = field(default_factory=Counter)
    """Trained tokens of samples of several documents: of the first one of each, of the second one, and so on, by its number from 0."""
    answers_longest: Counter[int] = field(default_factory=Counter)
    """The most of these in one sample."""
    prompts_total: int = 0
    """Tokens before the first trained one in the first documents of such samples."""
    prompts_longest: int = 0
    first_is_longest: int = 0
    """Such samples whose first document has more trained tokens than any other."""
    begin_tokens: Counter[int] = field(default_factory=Counter)
    """Samples that begin with none or one, and those that have two in a row; empty where the tokenizer puts none. Second and
    further pieces do not count. Of several documents each is to begin with one."""
    rows_without_stop: int = 0
    highest_id: int = -1
    rows_spelling: int = 0
    """Rows whose text spells a special token, which is read as text."""
    rows_without_media: int = 0
    """Rows without media that have a place for some, such as ``<image>``, which is read as text."""
    rows_plain: int = 0
    """Rows that are written as plain text, and ``rows_in_turns`` by the tokenizer's template: each by its fields, where ``data.template``
    does not say it for all."""
    rows_in_turns: int = 0
    duplicates: int = 0
    """Rows with the ids and trained places of an earlier one."""
    also_trained: int = 0
    """Rows of a held-out part that are also trained on."""
    filled: dict[str, float] = field(default_factory=dict)
    """Share of the places in rows that hold a token, by ``data.batching``."""
    places: dict[str, list[str]] = field(default_factory=dict)
    """The first rows of each kind."""
    bad_rows: list[str] = field(default_factory=list)
    """Faults of rows that were skipped, one for each."""
    named_files: dict[str, str] = field(default_factory=dict)
    """Files that rows name and nothing reads again: those of rows and items that were left out, and archives; size and time of each."""
    hashes: NDArray[np.uint64] | None = field(default=None, repr=False, compare=False)
    """64 bits a row, at its first sample, to find duplicates; not stored with the rest."""
    known: NDArray[np.uint64] | None = field(default=None, repr=False, compare=False)
    """``hashes`` in order, each once, when the duplicates are counted."""

    def drop(self, reason: str, row_id: str) -> None:
        """Count a row that is not used."""
        self.rows_dropped[reason] += 1
        self.note(reason, row_id)

    def bad_row(self, problem: str, kind: str = "") -> None:
        """Count a row that cannot be used, and by the kind of its fault where that has a name; the problem names the row."""
        self.rows_dropped[f"{BAD_ROW}: {kind}" if kind else BAD_ROW] += 1
        self.bad_rows.append(problem)

    def look_again(self, paths: Iterable[str]) -> None:
        """Remember how files are that what was counted depends on."""
        if new := [path for path in paths if path not in self.named_files]:
            self.named_files |= stamp(new)

    def spells(self, row_id: str) -> None:
        """Count a row whose text spells special tokens."""
        self.rows_spelling += 1
        self.note(SPELLING, row_id)

    def lacks_media(self, row_id: str) -> None:
        """Count a row with a place for media, and none to stand there."""
        self.rows_without_media += 1
        self.note(NO_MEDIA, row_id)

    def write_down(self, row_id: str, *, plain: bool) -> None:
        """Count a row by the form in which it is written."""
        self.rows_plain += plain
        self.rows_in_turns += not plain
        if plain:
            self.note(PLAIN_TEXT, row_id)

    def truncate(self, before: Sample, after: Sample) -> None:
        """Count a row that was cut."""
        self.rows_truncated += 1
        self.tokens_cut += len(before.ids) - len(after.ids)
        self.trained_cut += sum(map(bool, before.trained[1:])) - sum(map(bool, after.trained[1:]))
        self.note(TRUNCATED, before.row_id)

    def note(self, kind: str, *row_ids: str) -> None:
        """Remember the first rows of a kind."""
        known = self.places.setdefault(kind, [])
        if len(known) < PLACES:
            known[:] = list(dict.fromkeys([*known, *row_ids]))[:PLACES]

    def __add__(self, other: RowStatistics) -> RowStatistics:
        return RowStatistics.total([self, other])

    @classmethod
    def total(cls, reports: Iterable[RowStatistics]) -> RowStatistics:
        """One report of several parts, in their order."""
        whole = cls()
        hashes = []
        for report in reports:
            for name in _ADDED:
                setattr(whole, name, getattr(whole, name) + getattr(report, name))
            for name in _LARGEST:
                setattr(whole, name, max(getattr(whole, name), getattr(report, name)))
            whole.answers_longest |= report.answers_longest
            whole.named_files = (
                report.named_files | whole.named_files
            )  # the first stamp: another since then is a change
            for kind, row_ids in report.places.items():
                whole.note(kind, *row_ids)
            hashes.append(report.hashes)
        whole.source_samples = _join_runs(whole.source_samples)
        known = [each for each in hashes if each is not None]
        whole.hashes = np.concatenate(known) if known and len(known) == len(hashes) else None
        return whole

    def as_dict(self) -> dict[str, Any]:
        """Return the statistics as JSON holds them."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _NOT_STORED}
        counters = {
            name: {str(key): count for key, count in sorted(value.items())}
            for name, value in values.items()
            if isinstance(value, Counter)
        }
        return values | counters

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """Build from what ``as_dict`` gave, also out of JSON."""
        report = cls(**stored)
        report.source_samples = _join_runs(report.source_samples)
        for name in ("rows_dropped", "source_rows", "source_tokens", "source_trained"):
            setattr(report, name, Counter(stored.get(name, {})))
        for name in ("lengths", "begin_tokens", "answers_total", "answers_longest"):
            setattr(report, name, Counter({int(key): count for key, count in stored.get(name, {}).items()}))
        return report

    @property
    def trained_share(self) -> float:
        """Trained tokens of all."""
        return self.tokens_trained / max(self.tokens_total, 1)

    def describe(self) -> str:
        """One line for people."""
        dropped = "".join(f", {count} dropped ({reason})" for reason, count in self.rows_dropped.items())
        cut = f", {self.rows_split} split into {self.samples} samples" if self.rows_split else ""
        cut += f", {self.rows_truncated} truncated" if self.rows_truncated else ""
        rows = "1 row" if self.rows_kept == 1 else f"{self.rows_kept:,} rows"
        rows = f"the beginning of a stream: {rows}" if self.is_prefix else rows
        return f"{rows}{cut}{dropped}, {self.tokens_total:,} tokens, {100 * self.trained_share:.1f}% trained on"

    def describe_sources(self) -> list[str]:
        """A line for each source of a mixed dataset: its rows, and its share of the tokens."""
        found = []
        for name, tokens in sorted(self.source_tokens.items()):
            rows = "1 row" if self.source_rows[name] == 1 else f"{self.source_rows[name]:,} rows"
            share, trained = tokens / max(self.tokens_total, 1), self.source_trained[name] / max(tokens, 1)
            found.append(f"{name}: {rows}, {tokens:,} tokens ({100 * share:.1f}%), {100 * trained:.1f}% trained on")
        return found


def _join_runs(runs: Iterable[Sequence[Any]]) -> list[tuple[str, int]]:
    """Return pairs of a name and a number, where those that follow one another with one name are one pair."""
    found: list[tuple[str, int]] = []
    for name, count in runs:
        before = found.pop()[1] if found and found[-1][0] == name else 0
        found.append((name, before + count))
    return found


_LARGEST = ("longest", "highest_id", "prompts_longest", "is_prefix")
_NOT_STORED = ("hashes", "known")
_APART = (*_LARGEST, *_NOT_STORED, "answers_longest", "filled", "places", "named_files")
_ADDED = tuple(each.name for each in fields(RowStatistics) if each.name not in _APART)
