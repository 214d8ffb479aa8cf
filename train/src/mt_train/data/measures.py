"""Figures of encoded samples, over whole arrays: what a chunk of them shows, and what only all of them together do."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mt_core.errors import DataError
from mt_train.config.data import PAD_MULTIPLE, Packing
from mt_train.data import row_statistics as kinds
from mt_train.data.lengths import Lengths
from mt_train.data.order import permutation
from mt_train.data.packing import WINDOW, MediaLimit, pack, padded_size
from mt_train.data.row_statistics import PLACES, RowStatistics
from mt_train.data.samples import EncodedSamples

MEASURED_WINDOWS = 4
"""Packing windows that tell how full rows are: more of them say the same, to half a percent."""

HASHED_TOKENS = 1 << 15
"""Tokens whose hashes are computed together: what they need stays in the processor's cache."""

NOT_COMPARED = np.uint64(0)
"""Stands for the hash of a second or further piece of a row."""

Places = NDArray[np.intp]


def measure(samples: EncodedSamples, lengths: Lengths, *, begins: bool = True, ends: bool = True) -> None:
    """Fill the samples' report. Raises ``DataError`` for an id below 0.

    ``begins`` and ``ends`` say whether the first sample is the first piece of its row, and the last one the last.
    """
    if not len(samples):
        samples.report.hashes = np.zeros(0, np.uint64)
        return
    report, (ids, trained, bounds) = samples.report, samples.arrays()
    _refuse_negative(ids, bounds, samples.row_ids)
    report.highest_id = int(ids.max())
    counts = bounds[1:] - bounds[:-1]
    report.longest = int(counts.max())
    report.lengths = _count(2 ** np.ceil(np.log2(counts)).astype(np.int64))
    first, last = _whole_rows(samples, begins=begins, ends=ends)
    hashes = sample_hashes(ids, trained, bounds)
    if "media" in samples.names:
        hashes = hashes + _media_hashes(samples)
    report.hashes = _row_hashes(hashes, first)
    documents = _documents(samples)
    _count_begins(report, ids, documents, first, samples.row_ids, lengths)
    if trained.any():  # prompts alone have no answer, which could stop
        _count_stops(report, ids, trained, documents, last, samples.row_ids, lengths)
    if "documents" in samples.names:
        _count_answers(report, trained, documents)


class _Documents(NamedTuple):
    """Places where documents begin, with the end of the last, and the number of the first one of each sample."""

    bounds: NDArray[np.int64]
    firsts: NDArray[np.int64]


def _documents(samples: EncodedSamples) -> _Documents:
    """Samples are their only document where they have no others."""
    if "documents" not in samples.names:
        return _Documents(samples.column("ends"), np.arange(len(samples)))
    return _Documents(np.append(0, samples.column("documents").cumsum()), samples.column("document_ends")[:-1])


def _count_answers(report: RowStatistics, trained: NDArray[np.bool_], documents: _Documents) -> None:
    """Lengths of the documents of samples: prompts, and trained tokens of each by its place in its sample."""
    bounds, firsts = documents
    answers = np.add.reduceat(trained, bounds[:-1], dtype=np.int64)
    places = np.arange(len(answers)) - np.repeat(firsts, np.diff(np.append(firsts, len(answers))))
    for place in range(int(places.max()) + 1):
        of_place = answers[places == place]
        report.answers_total[place] = int(of_place.sum())
        report.answers_longest[place] = int(of_place.max())
    on = np.append(np.flatnonzero(trained), len(trained))
    starts = bounds[:-1][firsts]
    prompts = on[np.searchsorted(on, starts)] - starts
    report.prompts_total, report.prompts_longest = int(prompts.sum()), int(prompts.max())
    others = np.where(places > 0, answers, -1)
    longest = answers[firsts] > np.maximum.reduceat(others, firsts)
    report.first_is_longest = int((longest & (np.diff(np.append(firsts, len(answers))) > 1)).sum())


def _whole_rows(samples: EncodedSamples, *, begins: bool, ends: bool) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which samples are the first, and the last, piece of their row."""
    first = np.ones(len(samples), dtype=np.bool_)
    if samples.report.rows_split:
        row_ids = samples.row_ids
        first[1:] = [own != before for before, own in pairwise(row_ids)]
    first[0] = begins
    last = np.append(first[1:], ends)
    return first, last


def _refuse_negative(ids: NDArray[np.int32], bounds: NDArray[np.int64], row_ids: Sequence[str]) -> None:
    place = int(ids.argmin())
    if ids[place] < 0:
        raise DataError(
            f"{row_ids[_sample_of(bounds, place)]}: token id {ids[place]} is below 0; ids start at 0. Encode the row again, or"
            " leave it out"
        )


def _sample_of(bounds: NDArray[np.int64], place: int) -> int:
    return int(np.searchsorted(bounds, place, side="right")) - 1


def row_of_id(samples: EncodedSamples, token: int) -> str:
    """The first row that has this token id."""
    ids, _, bounds = samples.arrays()
    return samples.row_ids[_sample_of(np.asarray(bounds), int((np.asarray(ids) == token).argmax()))]


def _count(values: NDArray[np.int64]) -> Counter[int]:
    found, counts = np.unique(values, return_counts=True)
    return Counter(dict(zip(found.tolist(), counts.tolist(), strict=True)))


def _count_begins(
    report: RowStatistics,
    ids: NDArray[np.int32],
    documents: _Documents,
    first: NDArray[np.bool_],
    row_ids: Sequence[str],
    lengths: Lengths,
) -> None:
    """Count samples that begin with the begin token, where the tokenizer puts one, and those that have two in a row.

    Others may open a turn. One that is a stop token as well is looked for at the start only.
    """
    if lengths.bos_id is None or not lengths.begins or not first.any():
        return
    bounds, firsts = documents
    found = ids == lengths.bos_id
    counts = found[bounds[:-1]].astype(np.int64)
    if lengths.bos_id not in lengths.stop_ids:
        seconds = np.flatnonzero(found[1:] & found[:-1]) + 1
        seconds = seconds[~np.isin(seconds, bounds)]
        counts[np.searchsorted(bounds, seconds, side="right") - 1] = 2
    fewest, most = (of.reduceat(counts, firsts) for of in (np.minimum, np.maximum))
    counts = np.where(fewest == 0, fewest, most)
    report.begin_tokens = _count(counts[first])
    _note(report, kinds.NO_BEGIN, np.flatnonzero(first & (counts == 0)), row_ids)
    _note(report, kinds.TWO_BEGINS, np.flatnonzero(first & (counts > 1)), row_ids)


def _count_stops(
    report: RowStatistics,
    ids: NDArray[np.int32],
    trained: NDArray[np.bool_],
    documents: _Documents,
    last: NDArray[np.bool_],
    row_ids: Sequence[str],
    lengths: Lengths,
) -> None:
    """Rows where the last trained token of a document is no stop token; not asked where the tokenizer has none."""
    if not lengths.stop_ids:
        return
    bounds, firsts = documents
    ends = bounds[1:] - 1
    if not trained[ends].all():
        on = np.flatnonzero(trained)
        ends = on[np.searchsorted(on, bounds[1:], side="left") - 1]  # every document has a trained token
    missing = last & np.logical_or.reduceat(~np.isin(ids[ends], list(lengths.stop_ids)), firsts)
    report.rows_without_stop = int(missing.sum())
    _note(report, kinds.NO_STOP, np.flatnonzero(missing), row_ids)


def _note(report: RowStatistics, kind: str, numbers: Places, row_ids: Sequence[str]) -> None:
    if len(numbers):
        report.note(kind, *(row_ids[number] for number in numbers[:PLACES]))


def sample_hashes(ids: NDArray[np.int32], trained: NDArray[np.bool_], bounds: NDArray[np.int64]) -> NDArray[np.uint64]:
    """64 bits of each sample's ids and trained places.

    Ids are scattered over 64 bits (Fibonacci hashing, Knuth vol. 3, 6.4) and summed with a random factor for each place
    (multilinear hashing, Carter and Wegman 1979), all modulo 2**64.
    """
    longest = int((bounds[1:] - bounds[:-1]).max(initial=0))
    factors = np.random.Generator(np.random.PCG64(0)).integers(2**64, size=longest, dtype=np.uint64)
    sums = np.empty(len(bounds) - 1, np.uint64)
    begin = 0
    while begin < len(sums):
        end = max(begin + 1, int(np.searchsorted(bounds, bounds[begin] + HASHED_TOKENS, side="right")) - 1)
        part = slice(bounds[begin], bounds[end])
        sums[begin:end] = _hash(ids[part], trained[part], bounds[begin : end + 1] - bounds[begin], factors)
        begin = end
    return sums


def _hash(
    ids: NDArray[np.int32], trained: NDArray[np.bool_], bounds: NDArray[np.int64], factors: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    scattered = ids.astype(np.uint64)
    scattered *= np.uint64(2)
    scattered += trained
    scattered += np.uint64(1)
    scattered *= np.uint64(0x9E3779B97F4A7C15)
    scattered ^= scattered >> np.uint64(32)
    scattered *= factors[np.arange(len(ids)) - np.repeat(bounds[:-1], np.diff(bounds))]
    sums: NDArray[np.uint64] = np.add.reduceat(scattered, bounds[:-1])
    return sums


def _media_hashes(samples: EncodedSamples) -> NDArray[np.uint64]:
    """Return a number for each sample that tells its media from those of others, 0 where there are none: ids say nothing of them."""
    found = np.zeros(len(samples), np.uint64)
    ends = samples.column("media_ends")
    for number in np.flatnonzero(ends[1:] > ends[:-1]).tolist():
        content = b"".join(
            b"%d:%s" % (span.start, span.item.digest or span.item.content) for span in samples.media_of(number)
        )
        found[number] = int.from_bytes(hashlib.sha256(content).digest()[:8], "little")
    return found


def _row_hashes(hashes: NDArray[np.uint64], first: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """64 bits of each row, at its first piece: two rows that begin or end alike are no duplicates."""
    starts = np.flatnonzero(first | (np.arange(len(first)) == 0))
    number = np.arange(len(first)) - np.repeat(starts, np.diff(np.append(starts, len(first))))
    whole = np.full(len(hashes), NOT_COMPARED)
    whole[starts] = np.add.reduceat(hashes * (2 * number + 1).astype(np.uint64), starts)
    return np.where(first, whole, NOT_COMPARED)


# ------------------------------------------------------------------------------------------------------ the whole split


def count_duplicates(samples: EncodedSamples) -> None:
    """Count the rows that came before, and put the hashes in order for who looks for one. A row that a mix repeats is none of them."""
    report, row_ids = samples.report, samples.row_ids
    if report.hashes is None:
        return
    report.known, first = np.unique(report.hashes, return_index=True)
    repeated = report.hashes != NOT_COMPARED
    repeated[first] = False
    places = np.flatnonzero(repeated)
    before = first[np.searchsorted(report.known, report.hashes[places])]
    others = [row_ids[own] != row_ids[one] for own, one in zip(places.tolist(), before.tolist(), strict=True)]
    places = places[others]
    report.duplicates = len(places)
    _note(report, kinds.DUPLICATE, places, row_ids)


def compare(train: EncodedSamples, held_out: EncodedSamples) -> None:
    """Count the held-out rows that are also trained on. Their duplicates are counted."""
    known, own = train.report.known, held_out.report.hashes
    if known is not None and own is not None and len(known):
        places = np.searchsorted(known, own).clip(max=len(known) - 1)
        both = (known[places] == own) & (own != NOT_COMPARED)
        held_out.report.also_trained = int(both.sum())
        _note(held_out.report, kinds.ALSO_TRAINED, np.flatnonzero(both), held_out.row_ids)


def fill_ratios(
    samples: EncodedSamples,
    *,
    sequence_len: int,
    rows_at_a_time: int,
    seed: int,
    packing: Packing = "best_fit",
    most_features: int | None = None,
    pad_multiple: int = PAD_MULTIPLE,
) -> dict[str, float]:
    """Share of the places in a row that hold a token, packed and padded, in the first epoch; of a large set in some windows of it.

    Padded rows are as long as the longest of the ``rows_at_a_time`` that are computed together, rounded up as the loader does.
    """
    if not len(samples):
        return {}
    numbers = _sampled_numbers(len(samples), seed)
    own = samples.lengths_of(numbers)
    media = None if most_features is None else MediaLimit(samples.media_features_of(numbers), most_features)
    rows = pack(range(len(own)), own.tolist(), sequence_len, seed=seed, epoch=0, packing=packing, media=media)
    starts = np.arange(0, len(own), rows_at_a_time)
    longest = [padded_size(each, pad_multiple, sequence_len) for each in np.maximum.reduceat(own, starts).tolist()]
    places = np.array(longest) * np.minimum(rows_at_a_time, len(own) - starts)
    return {
        "packing": float(own.sum() / (len(rows) * sequence_len)),
        "padding": float(own.sum() / places.sum()),
    }


def _sampled_numbers(count: int, seed: int) -> NDArray[np.int64]:
    """All samples, or some of many: to put millions in order would take longer than opening them."""
    most = MEASURED_WINDOWS * WINDOW
    if count <= most:
        return permutation(count, seed=seed, epoch=0, shuffle=True)
    return np.random.Generator(np.random.PCG64([seed, 0])).choice(count, most, replace=False)
