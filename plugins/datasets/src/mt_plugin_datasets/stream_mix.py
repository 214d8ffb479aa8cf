"""Streams, and datasets beside them, as one stream: one after another, or in turns by weight.

Whose turn it is follows from seed, epoch and the number of the turn alone. The state is that number and where each source stands, so
that a run goes on behind any row as if it had never stopped.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Literal

from mt_core import DataError, Dataset, Row, Stream

_TURNS = 1024
"""Turns that are drawn together."""


class StreamMix:
    """Rows of several sources as a stream. ``weights`` are shares of rows; without them the sources come in sequence.

    An epoch ends when all sources were read (others begin anew), or with the ``first`` that was: never, where one has no end.
    """

    def __init__(
        self,
        sources: Sequence[MixedSource],
        weights: Sequence[float] | None = None,
        until: Literal["all", "first"] = "all",
    ) -> None:
        self._sources, self._weights = sources, weights
        self._is_over = any if weights is not None and until == "first" else all
        self._turn, self._is_loaded = 0, False

    def rows(self, epoch: int, seed: int) -> Iterator[Row | DataError]:
        """The rows of an epoch. Raises ``DataError`` for a source without any."""
        if not self._is_loaded:
            self.load_state_dict({"turn": 0, "sources": [MixedSource.BEGIN] * len(self._sources)})
        self._is_loaded = False
        for number in self._turns(epoch, seed):
            if self._is_epoch_over():
                return
            self._turn += 1
            row = self._sources[number].take(epoch, seed)
            if row is None and self._weights is not None and not self._is_epoch_over():
                row = self._sources[number].take(epoch, seed)  # a turn without a row would lower a short source's share
            if row is not None:
                yield row

    def _is_epoch_over(self) -> bool:
        return self._is_over(source.passes for source in self._sources)

    def _turns(self, epoch: int, seed: int) -> Iterator[int]:
        """Numbers of sources, from this turn on."""
        if self._weights is None:
            for number, source in enumerate(self._sources):
                while not source.passes:
                    yield number
            return
        block, skipped = divmod(self._turn, _TURNS)
        for number in count(block):
            chance = random.Random(f"{seed} {epoch} {number}")
            drawn = chance.choices(range(len(self._weights)), self._weights, k=_TURNS)
            yield from drawn[skipped if number == block else 0 :]

    def state_dict(self) -> dict[str, Any]:
        """The next turn, and where each source stands; empty where one of them cannot tell."""
        states = [source.state() for source in self._sources]
        return {} if None in states else {"turn": self._turn, "sources": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ``DataError`` when there were more sources, or fewer."""
        if len(state["sources"]) != len(self._sources):
            raise DataError(
                f"the run mixed {len(state['sources'])} sources, and dataset.sources has {len(self._sources)} now. Name those that it had."
            )
        for source, own in zip(self._sources, state["sources"], strict=True):
            source.load(own)
        self._turn, self._is_loaded = state["turn"], True


class MixedSource:
    """A source of the mix, and where it is read. ``name`` is what messages call it; ``columns`` maps our fields to its own.

    It ends behind its last row, or behind ``most`` rows.
    """

    BEGIN: Mapping[str, Any] = {"passes": 0, "read": 0, "state": {}}

    def __init__(
        self, source: Stream | Dataset, columns: Mapping[str, str], name: str, most: int | None = None
    ) -> None:
        self._stream = InOrder(source) if isinstance(source, Dataset) else source
        self._columns, self._name, self._most = columns, name, most
        self.load(self.BEGIN)

    def load(self, state: Mapping[str, Any]) -> None:
        """Stand where the source was when this was its state."""
        self.passes, self._read, self._known = state["passes"], state["read"], state["state"]
        self._rows: Iterator[Row | DataError] | None = None

    def state(self) -> dict[str, Any] | None:
        """Return how often it was read to its end, rows since, and its own state; ``None`` where it has none."""
        own = self._known if self._rows is None else self._stream.state_dict()
        return {"passes": self.passes, "read": self._read, "state": own} if own or not self._read else None

    def take(self, epoch: int, seed: int) -> Row | DataError | None:
        """The next row; ``None`` at the end, behind which it begins anew. Raises ``DataError`` where it has no row at all."""
        row = None if self._most is not None and self._read >= self._most else self._next(epoch, seed)
        if row is None:
            if not self._read:
                raise DataError(f"{self._name} has no rows. Take it out of the mix.")
            self.load({**self.BEGIN, "passes": self.passes + 1})
            return None
        self._read += 1
        return row if isinstance(row, DataError) else self._rename(row)

    def _next(self, epoch: int, seed: int) -> Row | DataError | None:
        if self._rows is None:
            if self._known:
                self._stream.load_state_dict(dict(self._known))
            self._rows = iter(self._stream.rows(epoch + self.passes, seed))
        return next(self._rows, None)

    def _rename(self, row: Row) -> Row | DataError:
        from mt_core import rename_columns  # numpy loads here, not when plugins are listed

        try:
            return rename_columns(row, self._columns)
        except DataError as fault:
            return fault


class InOrder:
    """The rows of a dataset as a stream."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset, self._next, self._start = dataset, 0, 0

    def rows(self, epoch: int, seed: int) -> Iterator[Row | DataError]:
        """Yield rows in the order of the dataset, the same in each epoch."""
        start, self._start = self._start, 0
        for index in range(start, len(self._dataset)):
            self._next = index + 1
            try:
                row: Row | DataError = self._dataset.row(index)
            except DataError as fault:
                row = fault
            yield row

    def state_dict(self) -> dict[str, Any]:
        """The next row."""
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ``DataError`` when the dataset became shorter."""
        if state["next"] > len(self._dataset):
            raise DataError(
                f"the run had read {state['next']:,} rows of a dataset that has {len(self._dataset):,} now. Give it the rows that it had."
            )
        self._start = self._next = state["next"]
