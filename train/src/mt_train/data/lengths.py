"""Lengths of samples, and what happens to one that is too long.

A sample is its source, the untrained tokens before the first trained one (the prompt), and its target, everything after.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from mt_core.errors import DataError
from mt_core.rows import MediaSpan, Rejected, Sample
from mt_train.config.data import Truncation

T = TypeVar("T")

NOTHING_LEFT = "data.truncation leaves nothing trained but the stop token"


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """The longest sample, source and target (tokens), what happens to a longer one, and what a cut keeps: begin and stop.

    A sample begins with ``bos_id`` where ``begins``, and ends with one of ``stop_ids``, or with a stop of ``stop_tokens`` tokens.
    """

    max_len: int
    truncation: Truncation
    max_source_len: int | None = None
    max_target_len: int | None = None
    bos_id: int | None = None
    begins: bool = True
    stop_ids: frozenset[int] = frozenset()
    stop_tokens: int = 0


def fit(sample: Sample, lengths: Lengths) -> list[Sample] | Rejected:
    """The sample as it is, cut, or in pieces, or why it is dropped. Raises ``DataError`` under ``truncation=error``."""
    too_long = list(_excesses(sample, lengths))
    if not too_long:
        return [sample]
    if refused := refuse_excess(sample, lengths, *too_long[0]):
        return refused
    return split(sample, lengths.max_len) if lengths.truncation == "split" else _cut(sample, lengths)


def refuse_excess(sample: Sample, lengths: Lengths, key: str, problem: str) -> Rejected | None:
    """Return why a sample that breaks the limit of ``key`` is dropped, where it is. Raises ``DataError`` under ``truncation=error``."""
    if lengths.truncation == "error":
        more = " and --train.sequence-len" if key == "max_len" else ""
        raise DataError(
            f"{sample.row_id}: {problem}; raise --data.{key.replace('_', '-')}{more}, shorten the row, or choose what happens to it:"
            " --data.truncation drop, left, right, middle or split"
        )
    return Rejected(f"longer than data.{key}", sample.row_id) if lengths.truncation == "drop" else None


def _excesses(sample: Sample, lengths: Lengths) -> Iterator[tuple[str, str]]:
    """Key and problem of each limit that the sample breaks."""
    length = len(sample.ids)
    if length > lengths.max_len:
        yield "max_len", f"{length} tokens exceed data.max_len={lengths.max_len}"
    if lengths.max_source_len is None and lengths.max_target_len is None:
        return
    source = list(sample.trained).index(True)
    if lengths.max_source_len is not None and source > lengths.max_source_len:
        yield "max_source_len", f"{source} tokens of the prompt exceed data.max_source_len={lengths.max_source_len}"
    if lengths.max_target_len is not None and length - source > lengths.max_target_len:
        problem = f"{length - source} tokens of the trained part exceed data.max_target_len={lengths.max_target_len}"
        yield "max_target_len", problem


def split(sample: Sample, max_len: int) -> list[Sample]:
    """Pieces of ``max_len`` tokens at most.

    They overlap by one token, which is context in the second piece, so that every trained token is predicted once.
    """
    starts = range(0, len(sample.ids) - 1, max_len - 1)
    for span in sample.media:
        if any(span.start < start < span.start + span.tokens for start in (*starts, *(s + max_len for s in starts))):
            raise DataError(
                f"{sample.row_id}: data.truncation=split would cut media of {span.tokens} tokens at token {span.start}; raise"
                " --data.max-len, or choose --data.truncation drop, left, right or middle"
            )
    pieces = (range(start, min(start + max_len, len(sample.ids))) for start in starts)
    return [pick(sample, places) for places in pieces if any(sample.trained[place] for place in places[1:])]


def _cut(sample: Sample, lengths: Lengths) -> list[Sample] | Rejected:
    """Source and target to their own limits, then both to theirs."""
    trained = [place for place, on in enumerate(sample.trained) if on]
    places = list(range(len(sample.ids)))
    source = _shorten(places[: trained[0]], lengths.max_source_len, sample, trained[-1], lengths)
    target = _shorten(places[trained[0] :], lengths.max_target_len, sample, trained[-1], lengths)
    kept = _shorten(source + target, lengths.max_len, sample, trained[-1], lengths)
    kept = without_cut_spans(sample, kept)
    left = [place for place in kept[1:] if sample.trained[place]]
    stop = _stop(sample, trained[-1], lengths)
    if not left or (len(left) <= stop and left == trained[-len(left) :] != trained):
        return Rejected(NOTHING_LEFT, sample.row_id)
    return [pick(sample, kept)]


def without_cut_spans(sample: Sample, places: list[int]) -> list[int]:
    """Return the places without those of media of which some are missing: an image goes as a whole, or not at all."""
    kept = set(places) if sample.media else set()
    cut = [span for span in sample.media if not kept.issuperset(range(span.start, span.start + span.tokens))]
    gone = {place for span in cut for place in range(span.start, span.start + span.tokens)}
    return [place for place in places if place not in gone] if gone else places


def _shorten(places: list[int], limit: int | None, sample: Sample, last: int, lengths: Lengths) -> list[int]:
    """``limit`` of the places at most. What follows the ``last`` trained token goes first; begin and stop token stay."""
    if limit is None or len(places) <= limit:
        return places
    spare = len(places) - bisect_right(places, last)
    places = places[: max(limit, len(places) - spare)]
    if len(places) == limit:
        return places
    begin = int(places[0] == 0 and sample.ids[0] == lengths.bos_id)
    end = min(limit, _stop(sample, last, lengths)) if places[-1] == last else 0
    if lengths.truncation == "right":
        return _cut_right(places, limit, end, sample)
    back = limit - min(begin, limit - end) if lengths.truncation == "left" else max(end, limit // 2)
    return places[: limit - back] + places[len(places) - back :]


def _cut_right(places: list[int], limit: int, stop: int, sample: Sample) -> list[int]:
    """The first ``limit`` places, with the ``stop`` tokens at the end where the cut is within a trained part.

    Anywhere else they would be learned behind half a turn of the user, or a second time behind an answer: then the last whole answer
    ends the sample. An answer of which the cut would take but tokens of its stop is kept with it, where that fits.
    """
    front = places[: limit - stop]
    if front and sample.trained[front[-1]] and sample.trained[places[len(front)]]:
        whole = next((end for end in range(len(front), limit + 1) if not sample.trained[places[end]]), None)
        return front + places[len(places) - stop :] if whole is None else places[:whole]
    return front[: next((end for end in range(len(front), 0, -1) if sample.trained[front[end - 1]]), len(front))]


def _stop(sample: Sample, last: int, lengths: Lengths) -> int:
    """Tokens of the stop that the trained part ends with."""
    return lengths.stop_tokens or int(int(sample.ids[last]) in lengths.stop_ids)


def pick(sample: Sample, places: Sequence[int], documents: Sequence[int] = ()) -> Sample:
    """Return the sample with these places alone; ``documents`` are the lengths that its own have then."""

    def take(values: Sequence[T]) -> list[T]:
        if isinstance(places, range):  # a piece of a long text
            return list(values[places.start : places.stop])
        return [values[place] for place in places]

    weights = None if sample.weights is None else take(sample.weights)
    values = {name: take(each) for name, each in sample.token_values.items()}
    return Sample(
        take(sample.ids),
        take(sample.trained),
        sample.row_id,
        weights,
        documents,
        sample.document_values,
        values,
        _move_spans(sample.media, places),
    )


def _move_spans(spans: Sequence[MediaSpan], places: Sequence[int]) -> tuple[MediaSpan, ...]:
    """The spans that are left with these places, where they stand then."""
    if not spans:
        return ()
    where = {place: number for number, place in enumerate(places)}
    return tuple(replace(span, start=where[span.start]) for span in spans if span.start in where)
