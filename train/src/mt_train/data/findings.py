"""Findings that row statistics warn of: one table of thresholds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mt_core.errors import DataError
from mt_train.data import row_statistics as kinds
from mt_train.data.row_statistics import RowStatistics


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """More than the share ``above`` of ``of`` being ``count`` is worth a line.

    It names the first rows of its ``kind``, or without one the reasons for which rows were dropped.
    """

    what: str
    count: Callable[[RowStatistics], int]
    of: Callable[[RowStatistics], int]
    above: float
    advice: str
    kind: str = ""


def _rows(report: RowStatistics) -> int:
    return report.rows_read


def _samples(report: RowStatistics) -> int:
    return report.samples


def _dropped_rows(report: RowStatistics) -> int:
    return report.rows_dropped.total()


def _count_plain_beside_turns(report: RowStatistics) -> int:
    return report.rows_plain if report.rows_in_turns else 0


def _count_doubled_begins(report: RowStatistics) -> int:
    return sum(samples for count, samples in report.begin_tokens.items() if count > 1)


THRESHOLDS = (
    Threshold(
        what="rows have no trained token",
        count=lambda report: report.rows_dropped[kinds.NO_TRAINED_TOKEN],
        of=_rows,
        above=0,
        advice="look at the prompt and the answer, and at what data.truncation leaves",
        kind=kinds.NO_TRAINED_TOKEN,
    ),
    Threshold(
        what="rows do not end in a stop token that is trained on, so the model never learns to stop there",
        count=lambda report: report.rows_without_stop,
        of=lambda report: report.rows_kept,
        above=0,
        advice="choose a template that ends the answer",
        kind=kinds.NO_STOP,
    ),
    Threshold(
        what="samples begin without the tokenizer's begin token",
        count=lambda report: report.begin_tokens[0],
        of=_samples,
        above=0,
        advice="choose a template that writes it",
        kind=kinds.NO_BEGIN,
    ),
    Threshold(
        what="samples have two begin tokens in a row",
        count=_count_doubled_begins,
        of=_samples,
        above=0,
        advice="take it out of the template or of the rows",
        kind=kinds.TWO_BEGINS,
    ),
    Threshold(
        what="rows were truncated",
        count=lambda report: report.rows_truncated,
        of=_rows,
        above=0.05,
        advice="raise --data.max-len and --train.sequence-len, or drop such rows with --data.truncation drop",
        kind=kinds.TRUNCATED,
    ),
    Threshold(
        what="rows were dropped",
        count=_dropped_rows,
        of=_rows,
        above=0.01,
        advice="repair them, or take them out; `mt-data inspect` names the first of each kind",
    ),
    Threshold(
        what="rows spell special tokens, which are read as text",
        count=lambda report: report.rows_spelling,
        of=_rows,
        above=0.10,
        advice="where they were meant as tokens, give turns and a --data.template, or --tokenizer.parse-specials true (huggingface)",
        kind=kinds.SPELLING,
    ),
    Threshold(
        what="rows have a place for media and none to stand there, so that it is read as text",
        count=lambda report: report.rows_without_media,
        of=_rows,
        above=0,
        advice="name their files in the field of their kind, such as images (--data.columns), or take the place out",
        kind=kinds.NO_MEDIA,
    ),
    Threshold(
        what="rows are written as plain text, and the others by the tokenizer's chat template",
        count=_count_plain_beside_turns,
        of=lambda report: report.rows_plain + report.rows_in_turns,
        above=0,
        advice="a system message, a history and fields of turns (messages, instruction) make that difference; write all in one form:"
        " --data.template own, plain, chatml …",
        kind=kinds.PLAIN_TEXT,
    ),
    Threshold(
        what="rows are duplicates",
        count=lambda report: report.duplicates,
        of=lambda report: report.rows_kept,
        above=0.10,
        advice="take them out of the rows",
        kind=kinds.DUPLICATE,
    ),
    Threshold(
        what="held-out rows are also trained on, so their loss says nothing",
        count=lambda report: report.also_trained,
        of=lambda report: report.rows_kept,
        above=0.01,
        advice="take them out of either part",
        kind=kinds.ALSO_TRAINED,
    ),
)
"""Each finding: what is counted, out of what, and the share above which it is reported."""

NAMED = 3
"""Rows that a line names."""

LEAST_TRAINED = 0.01
"""Share of trained tokens below which a split is told of."""


def findings(report: RowStatistics, split: str) -> list[str]:
    """One line for each threshold that a split breaks."""
    found = [_line(threshold, report) for threshold in THRESHOLDS if _breaks(threshold, report)]
    if report.samples and 0 < report.trained_share < LEAST_TRAINED:  # prompts alone have none
        share = f"{report.tokens_trained:,} of {report.tokens_total:,} tokens ({100 * report.trained_share:.2g}%) are trained on"
        found.append(f"{share}, less than {100 * LEAST_TRAINED:g}%; shorten the prompts with --data.max-source-len")
    return [f"{split}: {line}" for line in found]


def _breaks(threshold: Threshold, report: RowStatistics) -> bool:
    return threshold.count(report) > threshold.above * threshold.of(report)


def _line(threshold: Threshold, report: RowStatistics) -> str:
    count, of = threshold.count(report), threshold.of(report)
    limit = f", more than {100 * threshold.above:g}%" if threshold.above else ""
    where = ", ".join(_places(threshold, report) if threshold.kind else _reasons(report))
    return f"{count:,} of {of:,} {threshold.what}{limit}" + (f" ({where})" if where else "") + f"; {threshold.advice}"


def _places(threshold: Threshold, report: RowStatistics) -> Iterator[str]:
    yield from report.places.get(threshold.kind, [])[:NAMED]
    if threshold.count(report) > NAMED:
        yield "…"


def _reasons(report: RowStatistics) -> Iterator[str]:
    return (f"{count:,} × {reason}" for reason, count in report.rows_dropped.most_common())


def refuse_findings(found: list[str]) -> None:
    """Raise ``DataError`` with all of them (``data.strict``)."""
    if found:
        lines = "\n  ".join(found)
        raise DataError(f"data.strict is on, and the data has {len(found)} faults:\n  {lines}")
