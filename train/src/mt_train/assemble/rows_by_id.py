"""Rows of a run's dataset, found by the id that their samples have: answers are scored by the row of their prompt."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from mt_core.data.shapes import rename_columns
from mt_core.errors import DataError
from mt_core.protocols import Dataset
from mt_core.rows import Row
from mt_train.assemble.parts import Parts
from mt_train.assemble.sources import rows_of


class RowsById:
    """Rows of the dataset by the id that their samples have."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    @cached_property
    def _places(self) -> Mapping[str, tuple[Dataset, int]]:
        """Where each row is. Raises ``DataError`` for two rows of one id: nothing says which of them a sample was made of."""
        rows = rows_of(self._parts, None)
        found: dict[str, tuple[Dataset, int]] = {}
        for source, numbers in ((rows.train, rows.kept), (rows.evaluation, rows.held_out)):
            for number in map(int, numbers):
                try:
                    row = source.row(number)
                except DataError:  # a bad row, which was left out of the samples (data.on_bad_row)
                    continue
                other, place = found.setdefault(row["id"], (source, number))
                if (other is not source or place != number) and _differ(row, other.row(place)):
                    raise DataError(
                        f"{row['id']}: two rows have this id, and answers are scored by the row that has the id of their prompt. Give each"
                        " row an id of its own in the dataset's `row`"
                    )
        return found

    def __call__(self, row_id: str) -> Row:
        source, number = self._places[row_id]
        return rename_columns(source.row(number), self._parts.config.data.columns)


def _differ(row: Row, other: Row) -> bool:
    """Return whether rows differ. NaN is no difference, nor are arrays that look alike; images may be written as their places in memory."""
    return repr(row) != repr(other) and row != other
