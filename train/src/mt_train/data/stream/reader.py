"""Reader of a stream from so many rows into an epoch, reached by its own state or by skipping rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from mt_core.errors import DataError, MtError, describe_error, first_line
from mt_core.protocols import Stream
from mt_core.rows import Row
from mt_train.data.loader import Position


class RowsInMemory:
    """Rows that were read from a stream, by index; a bad one is raised when it is asked for."""

    def __init__(self, rows: Sequence[Row | DataError]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> Row:
        """The row, as it came. Raises the ``DataError`` that stands for a bad one."""
        row = self._rows[index]
        if isinstance(row, DataError):
            raise row
        return row


class StreamReader:
    """A stream, and how many rows of which epoch were read; ``ended`` when there are no more. ``say`` is told of what is skipped."""

    def __init__(
        self, source: Stream, name: str, *, seed: int, most: int | None = None, say: Callable[[str], None]
    ) -> None:
        self.name, self.read, self.ended = name, 0, False
        self._source, self._seed, self._most, self.say = source, seed, most, say
        self._epoch = -1
        self._rows: Iterator[Row | DataError] = iter(())

    def go_to(self, place: Position) -> None:
        """Stand before the row of this place: by going on, by the source's own state, or else by skipping rows."""
        if place.epoch == self._epoch and place.read == self.read:
            return
        if place.state is not None:
            self._load(dict(place.state))
            self._open(place.epoch, place.read)
        elif place.epoch != self._epoch or place.read < self.read:
            self._open(place.epoch, 0)
        self._skip(place.read - self.read)

    def take(self, count: int) -> list[Row | DataError]:
        """The next rows; fewer at the end of the epoch."""
        left = count if self._most is None else min(count, self._most - self.read)
        rows: list[Row | DataError] = list(islice(self._rows, left))
        self.read += len(rows)
        self.ended = len(rows) < count
        return rows

    def state(self) -> dict[str, Any] | None:
        """The source's state as JSON gives it back; ``None`` where it keeps none. Raises ``DataError`` for any other."""
        state = self._source.state_dict()
        if not state:
            return None
        try:
            kept: dict[str, Any] = json.loads(json.dumps(state, allow_nan=False))
            problem = "" if kept == state else "JSON would give it back changed"
        except (TypeError, ValueError) as error:
            problem = first_line(error)
        if problem:
            raise DataError(
                f"the state of {self.name} cannot be kept in a checkpoint: {problem}. Its state_dict() has to hold dicts with text as"
                " keys, lists, text, finite numbers, true, false and None only"
            )
        return kept

    def _load(self, state: dict[str, Any]) -> None:
        try:
            self._source.load_state_dict(state)
        except MtError:
            raise
        except Exception as error:  # a plugin's code may raise anything
            raise DataError(
                f"{self.name} cannot go on from the state in the checkpoint (position.state): {describe_error(error)}. Give it the"
                " version and the options that it had, or use another checkpoint"
            ) from error

    def _open(self, epoch: int, read: int) -> None:
        self._rows, self._epoch, self.read = iter(self._source.rows(epoch, self._seed)), epoch, read

    def _skip(self, count: int) -> None:
        if not count:
            return
        self.say(f"skipping {count:,} rows of {self.name}, which has no state to go on from")
        if (found := sum(1 for _ in islice(self._rows, count))) < count:
            raise DataError(
                f"{self.name} ended after {self.read + found:,} rows, and the run had read {self.read + count:,} of them. Give it the"
                " rows that it had, or start a new run"
            )
        self.read += count
