"""Encoding of rows into samples: columns renamed, media marked, encoded by the objective, fitted to the longest length, counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Literal

from mt_core.data.shapes import rename_columns
from mt_core.errors import ComponentError, DataError
from mt_core.model_protocols import Objective
from mt_core.protocols import Dataset
from mt_core.rows import Rejected, Row, Sample
from mt_train.data.items import fit_item
from mt_train.data.lengths import Lengths, fit
from mt_train.data.measures import measure
from mt_train.data.media.marks import mark_parts
from mt_train.data.media.named_files import archives_in, files_of
from mt_train.data.media.places import find_place, refuse_parts
from mt_train.data.media.rules import MediaRules, kind_of
from mt_train.data.online import CollectsAnswers
from mt_train.data.outcomes import Outcome, encode_rows
from mt_train.data.row_statistics import NO_TRAINED_TOKEN, RowStatistics
from mt_train.data.samples import EncodedSamples
from mt_train.data.source_counts import SourceCounts
from mt_train.data.special_texts import special_token_finder
from mt_train.data.written_forms import is_plain

if TYPE_CHECKING:
    from mt_train.data.media.reader import MediaReader


@dataclass(frozen=True, kw_only=True)
class Rules(Lengths):
    """Rules for every row, whatever its source and objective (the ``data`` section)."""

    columns: Mapping[str, str] = field(default_factory=dict)
    on_bad_row: Literal["error", "skip"] = "error"
    max_bad_rows: int = 100
    special_texts: tuple[str, ...] = ()
    """Special tokens that are read as text where a row spells them."""
    forms_differ: bool = False
    """Whether each row says by its fields in which form it is written, as no template is chosen for all."""
    media: MediaRules | None = None
    """Rules for parts that are no text; a run without encoders has none."""
    reader: MediaReader | None = None
    """Reads the media of batches; there in a run with encoders alone."""

    def prepare(self, row: Row) -> tuple[Row, int]:
        """Return a row as an objective gets it, and how many parts of it are no text. Raises ``DataError``."""
        row = rename_columns(row, self.columns)
        if self.media is None:
            refuse_parts(row)
            return row, 0
        return mark_parts(row, self.media)


def encode(dataset: Dataset, indices: Iterable[int], objective: Objective, rules: Rules) -> EncodedSamples:
    """Encode the rows at ``indices``; a pure function, whose reports add up. Raises ``DataError`` for a bad row, or too many."""
    samples, spells = EncodedSamples(reader=rules.reader), special_token_finder(rules.special_texts)
    learns = not isinstance(objective, CollectsAnswers)
    sources = SourceCounts(dataset, samples.report)
    waiting: deque[list[int]] = deque()
    """Index and number of media of each row that was read, and whose outcome did not come yet."""

    def read(index: int) -> Row:
        waiting.append([index, 0])
        row = dataset.row(index)
        if "id" not in row:
            raise DataError(
                f"row {index} of the dataset has no 'id': its row(index) names the place, as 'rows.jsonl:7', for messages"
            )
        if rules.media is not None:
            samples.report.look_again(archives_in(row, rules.media))
        row, parts = rules.prepare(row)
        waiting[-1][1] = parts
        if rules.media is not None and not parts and find_place(dict(row), rules.media.kinds):
            samples.report.lacks_media(row["id"])
        if spells(row):
            samples.report.spells(row["id"])
        if rules.forms_differ and (plain := is_plain(row)) is not None:
            samples.report.write_down(row["id"], plain=plain)
        return row

    for outcome in encode_rows(read, indices, objective):
        samples.report.rows_read += 1
        index, parts = waiting.popleft()
        _refuse_without_media(outcome, parts, objective)
        kept: Sequence[Sample] = ()
        try:
            kept = _add(samples, outcome, rules, learns=learns)
        except DataError as error:
            if rules.on_bad_row == "error":
                raise
            samples.report.bad_row(str(error), kind_of(error))
            samples.report.look_again(files_of(error))
            refuse_bad_rows(samples.report, rules)
        if isinstance(outcome, Sample) and outcome.media:
            samples.report.look_again(_files([outcome]) - _files(kept))
        sources.count(index)
    measure(samples, rules)
    return samples


def _files(samples: Iterable[Sample]) -> set[str]:
    return {span.item.path for sample in samples for span in sample.media} - {""}


def _refuse_without_media(outcome: Outcome, parts: int, objective: Objective) -> None:
    """Raise ``ComponentError`` for an objective that would train on the ids that only fill the places of media."""
    if parts and isinstance(outcome, Sample) and not outcome.media:
        what = "1 part that is no text" if parts == 1 else f"{parts} parts that are no text"
        raise ComponentError(
            f"{outcome.row_id}: objective {type(objective).__name__} drops the media of the row ({what}): its sample has none. It has to"
            " make samples with Encoded.sample(row_id), or pass on Encoded.media; choose an objective that does, such as sft"
        )


def refuse_bad_rows(report: RowStatistics, rules: Rules) -> None:
    """Raise ``DataError`` as encoding would have: for the first bad row, or for more of them than ``data.max_bad_rows``."""
    most = rules.max_bad_rows
    if report.bad_rows and rules.on_bad_row == "error":
        raise DataError(report.bad_rows[0])
    if len(report.bad_rows) > most:
        first = "\n  ".join(report.bad_rows[:5])
        raise DataError(
            f"{len(report.bad_rows)} bad rows exceed data.max_bad_rows={most}; repair them, or raise --data.max-bad-rows."
            f" The first of them:\n  {first}"
        )


def _add(samples: EncodedSamples, encoded: Outcome, rules: Rules, *, learns: bool) -> Sequence[Sample]:
    """Keep what becomes of one row, count and return it; one that is learned from has a trained token. Raises ``DataError`` for one
    that cannot be used."""
    if isinstance(encoded, DataError):
        raise encoded
    if learns and isinstance(encoded, Sample) and not any(islice(encoded.trained, 1, None)):
        encoded = Rejected(NO_TRAINED_TOKEN, encoded.row_id)
    pieces = encoded if isinstance(encoded, Rejected) else (fit_item if encoded.documents else fit)(encoded, rules)
    report = samples.report
    if isinstance(pieces, Rejected):
        report.drop(pieces.reason, pieces.row_id)
        return ()
    assert isinstance(encoded, Sample), "what is rejected has returned"
    report.rows_kept += 1
    if len(pieces) > 1:
        report.rows_split += 1
    elif len(pieces[0].ids) < len(encoded.ids):
        report.truncate(encoded, pieces[0])
    for piece in pieces:
        samples.add(piece)
    return pieces
