"""Rows and tokens by source: sums over parts are those of the whole, whatever becomes of a row."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from mt_core import DataError, Rejected, Row, Sample
from mt_train.data.encoding import Rules, encode
from mt_train.data.row_statistics import RowStatistics


class Numbers:
    """Two sources, the second of which has nothing for most rows: row ``n`` of all has ``n`` tokens."""

    def __len__(self) -> int:
        return 12

    def row(self, index: int) -> Row:
        if index == 9:
            raise DataError("numbers:9 is broken")
        return {"id": f"numbers:{index}", "tokens": index}

    def sources(self) -> Sequence[tuple[str, int]]:
        return [("small", 4), ("none", 0), ("large", 8)]


class Ones:
    """As many tokens as a row says, all but the first two trained; row 10 is rejected."""

    def encode(self, row: Row) -> Sample | Rejected:
        count = row["tokens"]
        if count == 10:
            return Rejected("ten", row["id"])
        return Sample([1] * count, [place > 1 for place in range(count)], row["id"])


RULES = Rules(max_len=7, truncation="right", on_bad_row="skip")


def report_of(indices: Sequence[int]) -> RowStatistics:
    return encode(Numbers(), indices, Ones(), RULES).report


def test_rows_and_tokens_are_counted_by_the_source_of_their_index() -> None:
    report = report_of([11, 3, 9, 8, 10, 5, 1])
    assert dict(report.source_rows) == {"small": 1, "large": 3}, "a row of one token has none that is trained"
    assert dict(report.source_tokens) == {"small": 3, "large": 7 + 7 + 5}
    assert dict(report.source_trained) == {"small": 1, "large": 5 + 5 + 3}
    assert report.describe_sources() == [
        "large: 3 rows, 19 tokens (86.4%), 68.4% trained on",
        "small: 1 row, 3 tokens (13.6%), 33.3% trained on",
    ]


@pytest.mark.parametrize("cut", [0, 3, 7])
def test_parts_add_up_to_the_whole_also_out_of_json(cut: int) -> None:
    indices = [11, 3, 9, 8, 10, 5, 1]
    parts = [report_of(each) for each in (indices[:cut], indices[cut:])]
    stored = [RowStatistics.from_dict(json.loads(json.dumps(each.as_dict()))) for each in parts]
    whole, added = report_of(indices), RowStatistics.total(stored)
    for name in ("source_rows", "source_tokens", "source_trained"):
        assert +getattr(added, name) == +getattr(whole, name)
    assert sum(whole.source_tokens.values()) == whole.tokens_total
    assert added.source_samples == whole.source_samples == [("large", 1), ("small", 1), ("large", 2)]


def test_a_dataset_of_one_source_has_no_such_counts() -> None:
    class One:
        def __len__(self) -> int:
            return 12

        def row(self, index: int) -> Row:
            return Numbers().row(index)

    report = encode(One(), [5, 6], Ones(), RULES).report
    assert report.source_rows == {}
    assert report.source_samples == []
    assert report.describe_sources() == []
