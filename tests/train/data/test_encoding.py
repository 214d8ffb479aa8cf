"""Rows with media on their way to an objective: marked, counted by the kind of what is wrong, and never dropped in silence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from mt_core import Rejected, Row, Sample, conversation
from mt_core.errors import ComponentError, DataError
from mt_core.rows import MEDIA_MARK, MediaItem, MediaSpan
from mt_train.data.encoding import Rules, encode
from mt_train.data.media.rules import MediaRules
from mt_train.data.row_statistics import RowStatistics
from mt_train.data.stream.reader import RowsInMemory


class Letters:
    """A token for each letter of the conversation; a place for each mark, unless it drops them. The empty answer is rejected."""

    def __init__(self, *, drops: bool = False) -> None:
        self._drops = drops

    def encode(self, row: Row) -> Sample | Rejected:
        turns = conversation(row)
        if not turns[-1]["content"]:
            return Rejected("'response' is empty", row["id"])
        text = "".join(turn["content"] for turn in turns)
        parts = [part for turn in turns for part in turn.get("media", ())]
        places = [place for place, letter in enumerate(text) if letter == MEDIA_MARK]
        media = tuple(
            MediaSpan(place, 1, MediaItem(part.kind, part.path, part.content), 1)
            for place, part in zip(places, parts, strict=True)
        )
        return Sample([ord(each) for each in text], [True] * len(text), row["id"], media=() if self._drops else media)


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    (tmp_path / "a.png").write_bytes(b"x")
    return rules_of(tmp_path)


def rules_of(folder: Path, on_bad_row: Literal["error", "skip"] = "error") -> Rules:
    media = MediaRules(kinds=frozenset({"image", "dna"}), roots=(folder,))
    options: dict[str, Any] = {"columns": {"image": "picture"}, "reader": lambda batch: batch}
    return Rules(max_len=64, truncation="drop", media=media, on_bad_row=on_bad_row, **options)


def rows(*fields: dict[str, Any]) -> Sequence[Row]:
    return [
        {"id": f"rows.jsonl:{number}", "picture": None, "response": "r", **each}
        for number, each in enumerate(fields, 1)
    ]


GOOD = {"prompt": "<image>?", "picture": "a.png"}
TEXT = {"prompt": "q"}


def encoded(given: Sequence[Row], rules: Rules, **options: Any) -> list[Sample]:
    return list(encode(RowsInMemory(given), range(len(given)), Letters(**options), rules))  # type: ignore[arg-type]


def test_rows_get_their_media_behind_their_columns(rules: Rules) -> None:
    marked, plain, other = encoded(rows(GOOD, TEXT, {"prompt": "<dna>", "dna": "ACGT"}), rules)
    assert [span.start for span in marked.media] == [0]
    assert Path(marked.media[0].item.path).name == "a.png"
    assert list(plain.media) == []
    assert other.media[0].item.content == b"ACGT"


def test_an_objective_that_drops_media_is_named(rules: Rules) -> None:
    with pytest.raises(ComponentError, match=r"rows.jsonl:2: objective Letters drops the media of the row \(1 part"):
        encoded(rows(TEXT, GOOD), rules, drops=True)
    assert len(encoded(rows(TEXT, TEXT), rules, drops=True)) == 2


def test_rows_that_fail_before_and_in_the_objective_do_not_shift_the_counts(tmp_path: Path, rules: Rules) -> None:
    bad, worse = {**GOOD, "picture": "none.png"}, {"response": 3, **GOOD}
    many = rows(*[bad, TEXT, worse, {**GOOD, "response": ""}] * 40, TEXT, GOOD)
    with pytest.raises(ComponentError, match=r"rows.jsonl:162: objective Letters drops"):
        encoded(many, rules_of(tmp_path, "skip"), drops=True)


def test_bad_rows_are_counted_once_by_kind(tmp_path: Path, rules: Rules) -> None:
    bad = [
        {**GOOD, "picture": "none.png"},
        {**GOOD, "picture": "gone.png"},
        {**GOOD, "picture": "/etc/passwd"},
        {**GOOD, "picture": "https://example.com/a.png"},
        {**GOOD, "prompt": "no place"},
        {"prompt": "<audio>", "audio": "a.wav"},
        {"response": None},
    ]
    given = rows(TEXT, *bad, GOOD)
    samples = encode(RowsInMemory(given), range(len(given)), Letters(), rules_of(tmp_path, "skip"))  # type: ignore[arg-type]
    report = samples.report
    assert report.rows_dropped == {
        "bad row: no such file": 2,
        "bad row: file outside the roots": 1,
        "bad row: URL": 1,
        "bad row: count of parts": 1,
        "bad row: part that no encoder reads": 1,
        "bad row": 1,
    }
    assert len(report.bad_rows) == 7
    assert all(fault.startswith(f"rows.jsonl:{number}: ") for number, fault in enumerate(report.bad_rows, 2))
    assert report.rows_read == report.rows_kept + report.rows_dropped.total() == 9
    assert RowStatistics.from_dict(report.as_dict()).rows_dropped == report.rows_dropped


def test_a_bad_row_ends_a_run_that_wants_none(rules: Rules) -> None:
    with pytest.raises(DataError, match=r"rows.jsonl:2: field 'image', number 1 names 'none.png'"):
        encoded(rows(GOOD, {**GOOD, "picture": "none.png"}), rules)


def test_a_token_that_a_mark_spells_is_no_special_token_as_text(tmp_path: Path) -> None:
    media = MediaRules(kinds=frozenset({"image"}), roots=(tmp_path,))
    rules = Rules(max_len=64, truncation="drop", media=media, special_texts=("<image>",))
    given = rows({"prompt": "<image>", "images": [b"x"]}, {"prompt": "<image>"})
    samples = encode(RowsInMemory(given), range(2), Letters(), rules)  # type: ignore[arg-type]
    assert samples.report.rows_spelling == 1


def test_runs_without_encoders_leave_rows_as_they_are() -> None:
    given = rows({"prompt": "A cat", "images": ["https://example.com/a.png"], "media": "news"})
    rules = Rules(max_len=64, truncation="drop")
    assert rules.prepare(given[0]) == (given[0], 0)
    assert rules.prepare(given[0])[0] is given[0]


def test_a_row_without_an_id_is_told_where_it_comes_from(rules: Rules) -> None:
    rows: Any = RowsInMemory([{"prompt": "a", "response": "b"}])
    with pytest.raises(DataError, match=r"row 0 of the dataset has no 'id': its row\(index\) names the place"):
        encode(rows, [0], Letters(), rules)
