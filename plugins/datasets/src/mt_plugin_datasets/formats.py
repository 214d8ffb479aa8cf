"""Files of any of our formats, told by their suffix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mt_core import DataError, Dataset
from mt_core.files import JsonRows, suffix_of

from .columnar import arrow_rows, parquet_rows
from .delimited import DelimitedRows

READERS: dict[str, Callable[[list[Path]], Dataset]] = {
    ".jsonl": JsonRows,
    ".json": JsonRows,
    ".parquet": parquet_rows,
    ".arrow": arrow_rows,
    ".csv": lambda files: DelimitedRows(files, delimiter=",", quote='"'),
    ".tsv": lambda files: DelimitedRows(files, delimiter="\t", quote='"'),
}
"""Suffix → what reads the rows; a folder is read in the first of these formats that it has."""


def rows_of(files: list[Path]) -> Dataset:
    """The rows of files of one format. Raises ``DataError`` for a suffix that we do not know, and for several."""
    found = sorted({suffix_of(path) for path in files})
    if len(found) > 1 or found[0] not in READERS:
        raise DataError(
            f"{files[0].absolute()} has suffix {' and '.join(map(repr, found))}, which does not tell its format. Rename it to one of"
            f" {', '.join(READERS)}, or name the format with --dataset csv, jsonl …"
        )
    return READERS[found[0]](files)
