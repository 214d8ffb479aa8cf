"""Rows of prompts, found again by the id that their samples have."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mt_core.errors import DataError
from mt_train.assemble import rows_by_id
from mt_train.assemble.sources import Rows


class Source:
    """Rows in memory; one that is ``None`` cannot be read."""

    def __init__(self, rows: Sequence[dict[str, Any] | None]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> dict[str, Any]:
        found = self._rows[index]
        if found is None:
            raise DataError(f"rows:{index + 1} is no row")
        return dict(found)


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``find(train, held_out)``: the rows of these sources by id."""

    def by_id(train: Sequence[dict[str, Any] | None], held_out: Sequence[dict[str, Any] | None] = ()) -> Any:
        rows = Rows(Source(train), np.arange(len(train)), Source(held_out), range(len(held_out)))
        monkeypatch.setattr(rows_by_id, "rows_of", lambda parts, dataset: rows)
        columns = SimpleNamespace(data=SimpleNamespace(columns={"prompt": "text"}))
        return rows_by_id.RowsById(SimpleNamespace(config=columns))  # type: ignore[arg-type]

    return by_id


def test_rows_are_found_by_id_with_their_columns_renamed(find: Any) -> None:
    found = find([{"id": "a", "text": "one"}, {"id": "b", "text": "two"}], [{"id": "c", "text": "three"}])
    assert [found(each)["prompt"] for each in "cab"] == ["three", "one", "two"]


def test_a_row_that_cannot_be_read_stands_in_nobodys_way(find: Any) -> None:
    """Where ``data.on_bad_row`` is ``skip`` it has no sample; otherwise the run ended before."""
    found = find([None, {"id": "b", "text": "two"}], [None])
    assert found("b")["prompt"] == "two"


def test_two_rows_of_one_id_are_refused(find: Any) -> None:
    same = {"id": "a", "text": "one"}
    for train, held_out in (([same, {**same, "text": "two"}], ()), ([same], [{**same, "text": "two"}])):
        with pytest.raises(DataError, match=r"^a: two rows have this id, .* Give each row an id of its own"):
            find(train, held_out)("a")


def test_a_row_that_is_there_twice_is_one(find: Any) -> None:
    """A mix repeats rows; NaN is as little a difference as an array."""
    rows = [{"id": "a", "text": "one", "score": float("nan"), "image": np.arange(3)} for _ in range(2)]
    assert find(rows, rows)("a")["prompt"] == "one"
