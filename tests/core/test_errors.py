"""Errors of rows name their row, once."""

from __future__ import annotations

from mt_core import DataError


def test_an_error_of_a_row_begins_with_its_name_once() -> None:
    fault = DataError("1 file is missing")
    named = fault.of_row("rows.jsonl:1")
    assert str(named) == "rows.jsonl:1: 1 file is missing"
    assert named.__cause__ is fault
    assert named.of_row("rows.jsonl:1") is named
    assert str(fault.of_row(1)) == "1: 1 file is missing"  # a number in the text is no name
