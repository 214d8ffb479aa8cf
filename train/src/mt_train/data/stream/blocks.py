"""The rows of a stream in blocks, encoded: what is shuffled and packed together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from threading import Thread

from mt_core.errors import DataError
from mt_core.model_protocols import Objective
from mt_core.rows import Row
from mt_train.data.encoding import Rules, encode, refuse_bad_rows
from mt_train.data.loader import Position, WaitingEnded
from mt_train.data.row_statistics import RowStatistics
from mt_train.data.samples import EncodedSamples
from mt_train.data.stream.reader import RowsInMemory, StreamReader
from mt_train.data.stream.shares import EncodingRanks, encode_shared

BARREN_ROWS = 100_000
"""Rows of a stream one after another without anything to train on, after which nobody waits any longer."""

REST_SECONDS = 5.0
"""How long the end of a run waits for a block that is still being read: a thread in native code must not outlive its interpreter."""


POLL_SECONDS = 0.1
"""Between two questions whether the rows that are waited for are still wanted."""


def _without_repeats(rows: Sequence[Row | DataError]) -> list[Row | DataError]:
    """Return rows without those that came before with the same id and content, as a small source of a mix gives them."""
    known: dict[str, Row] = {}
    kept: list[Row | DataError] = []
    for row in rows:
        if not isinstance(row, DataError):
            name = str(row["id"])
            if name in known and _is_same(row, known[name]):
                continue
            known[name] = row
        kept.append(row)
    return kept


def _is_same(row: Row, other: Row) -> bool:
    try:
        return bool(row == other)
    except ValueError:  # arrays, which compare value by value
        return False


def _wait(made: Future[Block | None], stop: Callable[[], bool]) -> None:
    while not wait([made], timeout=POLL_SECONDS).done:
        if stop():
            raise WaitingEnded


@dataclass(frozen=True)
class Block:
    """Rows that were read together, encoded. ``begin`` is where they begin, ``end`` where the next block does."""

    begin: Position
    end: Position
    samples: EncodedSamples


class Blocks:
    """The blocks of a stream, each read while the one before it is in use. ``check`` may refuse the samples of one.

    ``held_out`` has the samples of the first rows of the stream (so many, or the first ``limit`` of them), which are in no block of
    any epoch; one that a mix repeats is there once. ``report`` counts the rows of the blocks that were used. Raises ``DataError`` for a
    stream without rows, and where no row would be left.

    Every rank encodes what is held out and the first block by itself; those behind it in shares, once ``share`` was called.
    """

    def __init__(
        self,
        reader: StreamReader,
        objective: Objective,
        rules: Rules,
        *,
        size: int,
        held_out: int = 0,
        limit: int | None = None,
        check: Callable[[EncodedSamples], None] = lambda samples: None,
    ) -> None:
        self._reader, self._objective, self._rules, self._size, self._check = reader, objective, rules, size, check
        self._bad, self._barren = RowStatistics(), 0
        self._ranks: EncodingRanks | None = None
        self.report, self._counted = RowStatistics(), (-1, -1)
        self._ahead: tuple[Position, Future[Block | None]] | None = None
        reader.go_to(Position())
        first = _without_repeats(reader.take(held_out))
        self.held_out = self._encode(first[:limit])
        self._held, self._held_ids = len(first), self._ids(first)
        self._latest = self.first = self._first()

    @property
    def name(self) -> str:
        """Return the stream's name for messages."""
        return self._reader.name

    def share(self, ranks: EncodingRanks) -> None:
        """Encode the blocks to come together with other ranks, which use the same ones in the same order."""
        assert self._ahead is None, "no rank may be a block ahead of the others"
        self._ranks = ranks

    def block(self, begin: Position, stop: Callable[[], bool] = lambda: False) -> Block | None:
        """The block that begins there; ``None`` at the end of the epoch.

        Raises ``DataError`` for a bad row, and ``WaitingEnded`` once ``stop`` says so: a source may have no rows for hours.
        """
        for known in (self.first, self._latest):
            if begin == known.begin:
                return known
        if self._ahead is not None and self._ahead[0] != begin:
            _wait(self._ahead[1], stop)  # two at once would read each other's rows
            self._ahead = None
        self.prepare(begin)
        assert self._ahead is not None, "prepare() has begun to read"
        made = self._ahead[1]
        _wait(made, stop)
        self._ahead = None
        block = made.result()
        if block is not None:
            self._latest = block
        return block

    def prepare(self, begin: Position) -> None:
        """Read the block that begins there in the background. What goes wrong is raised to whoever asks for it."""
        if self._ahead is not None:
            return
        made: Future[Block | None] = Future()

        def read() -> None:
            try:
                made.set_result(self._at(begin))
            except BaseException as error:  # noqa: BLE001 - it belongs to the thread that waits
                made.set_exception(error)

        self._ahead = begin, made
        Thread(target=read, daemon=True).start()  # a daemon: one that waits for rows must not keep a process alive

    def rest(self) -> None:
        """Let what is read in the background come to an end, within reason."""
        if self._ahead is not None:
            wait([self._ahead[1]], timeout=REST_SECONDS)

    def count(self, block: Block) -> None:
        """Add its rows to the report: once, though its position may be read again."""
        place = (block.begin.epoch, block.begin.block)
        if place > self._counted:
            self._counted = place
            block.samples.report.hashes = None  # which would grow with the stream
            self.report = RowStatistics.total([self.report, block.samples.report])
            self.report.bad_rows, self.report.named_files = [], {}  # so would these, which each block has told
            self.report.is_prefix = False

    def _at(self, begin: Position) -> Block | None:
        block = self._read(begin, begin)
        for problem in block.samples.report.bad_rows if block is not None else ():
            self._reader.say(f"warning: passed over a bad row: {problem}")
        return block

    def _first(self) -> Block:
        block = self._read(Position(), Position(read=self._reader.read))
        if block is not None:
            block.samples.report.is_prefix = not self._reader.ended
            return block
        if self._held:
            raise DataError(
                f"data.eval={self._held} holds out all rows of {self.name} and leaves none to train on; set a smaller"
                " data.eval, or none"
            )
        raise DataError(f"{self.name} has no rows; look at its options (--dataset.…), or choose another --dataset")

    def _ids(self, held: Sequence[Row | DataError]) -> frozenset[str]:
        rows = [row for row in held if not isinstance(row, DataError)]
        found = frozenset(str(row["id"]) for row in rows)
        if len(found) < len(rows):
            raise DataError(
                f"the first {len(held):,} rows of {self.name} have only {len(found):,} ids, so that data.eval={len(held)} cannot tell them"
                " from others; give each row an id of its own, or set data.eval to a path or none"
            )
        return found

    def _encode(self, rows: Sequence[Row | DataError]) -> EncodedSamples:
        return encode(RowsInMemory(rows), range(len(rows)), self._objective, self._rules)

    def _read(self, begin: Position, place: Position) -> Block | None:
        """Rows from ``place`` on until there is something to train on, or the epoch ends: the block that begins at ``begin``."""
        if begin.block == 0:
            self._bad = RowStatistics()
        reports: list[RowStatistics] = []
        while True:
            samples = self._encode_next(place)
            reports.append(samples.report)
            if len(samples) or self._reader.ended:
                break
            self._refuse_barren(samples.report.rows_read, RowStatistics.total(reports))
            place = Position(begin.epoch, read=self._reader.read)
        samples.report = RowStatistics.total(reports)
        if not len(samples) and not samples.report.rows_read:
            return None
        self._barren = 0
        self._bad.bad_rows += samples.report.bad_rows
        refuse_bad_rows(self._bad, self._rules)
        self._check(samples)
        end = Position(begin.epoch, block=begin.block + 1, read=self._reader.read, state=self._reader.state())
        return Block(begin, end, samples)

    def _encode_next(self, place: Position) -> EncodedSamples:
        """The rows behind ``place`` that are not held out, as many as a block has."""

        def read() -> list[Row | DataError]:
            self._reader.go_to(place)
            rows = self._reader.take(self._size)
            return [row for row in rows if isinstance(row, DataError) or str(row["id"]) not in self._held_ids]

        if self._ranks is None:
            return self._encode(read())
        return encode_shared(read, self._objective, self._rules, self._ranks, self.name)

    def _refuse_barren(self, count: int, report: RowStatistics) -> None:
        self._barren += count
        refuse_bad_rows(report, self._rules)
        if self._barren >= BARREN_ROWS:
            reasons = ", ".join(f"{number:,} × {reason}" for reason, number in report.rows_dropped.most_common(3))
            raise DataError(
                f"{self._barren:,} rows of {self.name} one after another gave nothing to train on ({reasons}); look at them with"
                " `mt-data inspect`"
            )
