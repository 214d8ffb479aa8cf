"""Shares of a block: each of some ranks encodes one, and all of them get the samples of all.

Rows are shared out in runs of neighbours, so that samples, statistics and the first fault are those of one rank that encodes
everything. What goes from rank to rank are columns of numbers and a header in JSON: nothing of it can execute.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mt_core.errors import ComponentError, DataError, MtError, WorkerError, describe_error
from mt_core.model_protocols import Objective
from mt_core.rows import Row
from mt_train.data.columns import dtype_of, joined_values
from mt_train.data.encoding import Rules, encode, refuse_bad_rows
from mt_train.data.outcomes import AT_ONCE, EncodesTogether
from mt_train.data.row_statistics import RowStatistics
from mt_train.data.samples import EncodedSamples
from mt_train.data.stream.reader import RowsInMemory

Content = NDArray[np.uint8]
Rows = Sequence[Row | DataError]


@dataclass(frozen=True, kw_only=True)
class EncodingRanks:
    """Ranks that encode a stream together, by their numbers in the run; this one is number ``place`` of them.

    ``gather`` gives each of them the content of all, in their order. All call it equally often, each in a thread of its own beside
    training.
    """

    ranks: Sequence[int]
    place: int
    gather: Callable[[Content], Sequence[Content]]


def share_of(count: int, place: int, ranks: int, *, together: int = 1) -> slice:
    """Return which of ``count`` rows a rank encodes: neighbours, ``together`` of which are never divided."""
    runs = -(-count // together)
    begin, end = (runs * number // ranks * together for number in (place, place + 1))
    return slice(begin, min(end, count))


def encode_shared(
    read: Callable[[], Rows], objective: Objective, rules: Rules, ranks: EncodingRanks, name: str
) -> EncodedSamples:
    """Encode the rows that ``read`` gives every rank, a share on each. Collective: a rank that fails says so to the others.

    ``name`` is the stream's. Raises on all ranks what the first of them raised, in the order of rows, and ``DataError`` where they have
    read different rows.
    """
    together = AT_ONCE if isinstance(objective, EncodesTogether) else 1
    share, failure = _Share(EncodedSamples()), None
    try:
        rows = read()
        own = rows[share_of(len(rows), ranks.place, len(ranks.ranks), together=together)]
        # How many bad rows are too many shows in all shares.
        samples = encode(RowsInMemory(own), range(len(own)), objective, replace(rules, max_bad_rows=len(own)))
        share = _Share(samples, len(rows), _checksum(rows))
    except BaseException as error:  # noqa: BLE001 - raised below, once the others know of it
        failure = error
        share = _Share(EncodedSamples(), failure=_describe(error))
    shares = [_Share.unpack(content) for content in ranks.gather(share.pack())]
    _refuse_faults(shares, failure, rules, ranks, name)
    return _join([share.samples for share in shares], rules)


@dataclass(frozen=True)
class _Share:
    """Samples of a rank, how many rows it has read in all and the checksum of their ids; or the kind and the text of its failure."""

    samples: EncodedSamples
    rows: int = 0
    checksum: int = 0
    failure: Sequence[str] = ()

    def pack(self) -> Content:
        """Return the share as bytes: the length of a header, this in JSON, and the columns that it names."""
        columns = {name: np.ascontiguousarray(each, dtype_of(name)) for name, each in self.samples.columns.items()}
        report = self.samples.report
        header = {
            "rows": self.rows,
            "checksum": self.checksum,
            "failure": self.failure,
            "counts": {name: len(each) for name, each in columns.items()},
            # Reasons are shown in the order of rows.
            "report": {**report.as_dict(), "rows_dropped": report.rows_dropped},
        }
        head = json.dumps(header).encode()
        begin = np.frombuffer(struct.pack("<q", len(head)) + head, np.uint8)
        return np.concatenate([begin, *(each.view(np.uint8) for each in columns.values())])

    @classmethod
    def unpack(cls, content: Content) -> Self:
        """Return what ``pack`` packed."""
        (length,), place = struct.unpack("<q", content[:8].tobytes()), 8
        header = json.loads(content[place : place + length].tobytes())
        place += length
        columns: dict[str, NDArray[Any]] = {}
        for name, count in header["counts"].items():
            end = place + count * dtype_of(name).itemsize
            columns[name] = content[place:end].view(dtype_of(name))
            place = end
        samples = EncodedSamples(columns, RowStatistics.from_dict(header["report"]))
        return cls(samples, header["rows"], header["checksum"], header["failure"])


def _checksum(rows: Rows) -> int:
    """Return a number that tells these rows from others, by their ids; a bad row has its fault."""
    checksum = 0
    for row in rows:
        text = str(row) if isinstance(row, DataError) else str(row["id"])
        checksum = zlib.crc32(text.encode("utf-8", "surrogateescape"), checksum)
    return checksum


def _describe(error: BaseException) -> list[str]:
    """Return the kind of an error and its text; a kind that ranks do not share has the name of the error in its text."""
    kind = next((name for name, each in _KINDS.items() if isinstance(error, each)), "")
    return [kind, str(error) if kind else describe_error(error)]


_KINDS: Mapping[str, type[MtError]] = {"component": ComponentError, "data": DataError, "other": MtError}
"""Errors that every rank raises as they are, the most special ones in front."""


def _refuse_faults(
    shares: Sequence[_Share], own: BaseException | None, rules: Rules, ranks: EncodingRanks, name: str
) -> None:
    """Raise what one rank that encodes all rows would have raised first. ``own`` is this rank's failure."""
    bad = RowStatistics()
    for place, (rank, share) in enumerate(zip(ranks.ranks, shares, strict=True)):
        bad.bad_rows += share.samples.report.bad_rows
        del bad.bad_rows[rules.max_bad_rows + 1 :]
        refuse_bad_rows(bad, rules)
        if share.failure:
            if own is not None and place == ranks.place:
                raise own
            raise _failure(share.failure, rank, name) from own
    first = shares[0]
    for rank, share in zip(ranks.ranks, shares, strict=True):
        if (share.rows, share.checksum) != (first.rows, first.checksum):
            raise DataError(
                f"rank {rank} has read other rows of {name} than rank {ranks.ranks[0]} ({share.rows:,} and {first.rows:,} in the"
                " block, with other ids). A stream has to give every rank the same rows in the same order: look at what its source"
                " depends on (time, host, process), or train in one process"
            )


def _failure(failure: Sequence[str], rank: int, name: str) -> MtError:
    kind, text = failure
    if kind:
        return _KINDS[kind](text)
    return WorkerError(f"rank {rank} could not encode its share of {name} ({text}); its log says where")


def _join(parts: Sequence[EncodedSamples], rules: Rules) -> EncodedSamples:
    """Return the samples of all shares, in their order. Raises ``ComponentError`` where some have other columns than others."""
    report = RowStatistics.total(part.report for part in parts)
    some = [part for part in parts if len(part)]
    if not some:
        return EncodedSamples(None, report, reader=rules.reader)
    for part in some[1:]:
        if part.names != some[0].names:
            both = EncodedSamples(reader=rules.reader)
            both.add(some[0][0])
            both.add(part[0])  # says what is wrong with it
    columns = [part.columns for part in some]
    counts = [{name: len(values) for name, values in each.items()} for each in columns]
    whole = {name: np.concatenate(list(joined_values(name, counts, columns))) for name in columns[0]}
    return EncodedSamples(whole, report, reader=rules.reader)
