"""Parquet and Arrow files, read by row group or mapped: row 12 of a file has the id ``file:12``.

Parquet decodes a row group at a time and keeps two, so that reading in order is fast. Arrow files and streams (those of
Hugging Face ``datasets`` are streams) are mapped.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from mt_core import DataError, Row, first_line
from mt_core.files import FileConfig

from .absent_keys import without_absent_keys
from .load_cache import LoadCache

_REPAIR = "Fetch or write it anew."


class ParquetConfig(FileConfig):
    """Files of the rows."""

    path: str = Field(min_length=1, description="file; a folder (all *.parquet below it, sorted); a pattern")


class ArrowConfig(FileConfig):
    """Files of the rows."""

    path: str = Field(min_length=1, description="file or stream of Arrow IPC; a folder (all *.arrow below it, sorted)")


def parquet_files(config: ParquetConfig, split: Literal["train", "eval"]) -> list[Path] | None:
    """The files of a split."""
    return config.files(split, ".parquet")


def build_parquet(config: ParquetConfig, *, split: Literal["train", "eval"]) -> ColumnarRows | None:
    """The rows of a split."""
    files = parquet_files(config, split)
    return None if files is None else parquet_rows(files)


def arrow_files(config: ArrowConfig, split: Literal["train", "eval"]) -> list[Path] | None:
    """The files of a split."""
    return config.files(split, ".arrow")


def build_arrow(config: ArrowConfig, *, split: Literal["train", "eval"]) -> ColumnarRows | None:
    """The rows of a split."""
    files = arrow_files(config, split)
    return None if files is None else arrow_rows(files)


def parquet_rows(files: Sequence[Path]) -> ColumnarRows:
    """Rows of Parquet files."""
    return ColumnarRows(files, _survey_parquet, _load_parquet)


def arrow_rows(files: Sequence[Path]) -> ColumnarRows:
    """Rows of Arrow files."""
    return ColumnarRows(files, _survey_arrow, _load_arrow)


class Batches:
    """Record batches, each checked before its first row is read: a damaged one could crash the process.

    Of a batch that is damaged every row is checked by itself, so that one bad row spoils no other.
    """

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches
        self._begins = list(accumulate((batch.num_rows for batch in batches), initial=0))
        self._sound: dict[int, bool] = {}

    def row(self, index: int) -> dict[str, Any]:
        """The values of one row under the names of the columns. Raises what the library does for a damaged one."""
        number = bisect_right(self._begins, index) - 1
        batch = self._batches[number]
        if number not in self._sound:
            self._sound[number] = _is_sound(batch)
        row = batch.slice(index - self._begins[number], 1)
        if not self._sound[number]:
            row.validate(full=True)
        values: dict[str, Any] = row.to_pylist()[0]
        return values


def _is_sound(batch: Any) -> bool:
    import pyarrow as pa

    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


class ColumnarRows:
    """Rows of files that consist of chunks; ``survey(file)`` counts their rows, ``load(file, chunk)`` reads one."""

    def __init__(
        self,
        files: Sequence[Path],
        survey: Callable[[Path], list[int]],
        load: Callable[[Path, int], Batches],
    ) -> None:
        self._chunks: list[tuple[Path, int, int]] = []  # file, number of the chunk, rows of the file before it
        sizes: list[int] = []
        for path in files:
            with _faults(path):
                found = survey(path)
            if not sum(found):
                raise DataError(f"{path.absolute()} has no rows. Write some into it, or take it out of dataset.path.")
            self._chunks += [(path, number, sum(found[:number])) for number in range(len(found))]
            sizes += found
        self._begins = list(accumulate(sizes, initial=0))
        self._kept = LoadCache(load)

    def __len__(self) -> int:
        return self._begins[-1]

    def row(self, index: int) -> Row:
        """The values of one row; ``id`` is ``file:row``, from 1. Raises ``DataError`` with both when it cannot be read."""
        chunk = bisect_right(self._begins, index) - 1
        path, number, before = self._chunks[chunk]
        inner = index - self._begins[chunk]
        place = f"{path}:{before + inner + 1}"
        with _faults(place):
            return {**without_absent_keys(self._kept.get(path, number).row(inner)), "id": place}


@contextmanager
def _faults(place: str | Path) -> Iterator[None]:
    """Whatever the library makes of a bad file is one kind of error here."""
    try:
        yield
    except DataError:
        raise
    except (PermissionError, FileNotFoundError) as error:
        raise DataError(
            f"{place} cannot be read: {os.strerror(error.errno or 0)}. Check the path and its permissions."
        ) from error
    except Exception as error:
        reason = first_line(error).rstrip(".") or type(error).__name__
        raise DataError(
            f"{place} cannot be read; it is damaged, cut off or of another format: {reason}. {_REPAIR}"
        ) from error


def _check_unique(path: Path, names: Sequence[str]) -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{path}: column {twice[0]!r} stands twice. Rename one of the two.")


def _open_parquet(path: Path) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(path, memory_map=True, pre_buffer=False, page_checksum_verification=True)


def _survey_parquet(path: Path) -> list[int]:
    with _open_parquet(path) as file:
        _check_unique(path, file.schema_arrow.names)
        return [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]


def _load_parquet(path: Path, number: int) -> Batches:
    with _open_parquet(path) as file:  # no threads: they do not live on in a process that is forked
        return Batches(file.read_row_group(number, use_threads=False).to_batches())


def _survey_arrow(path: Path) -> list[int]:
    batches, names = _map_arrow(path)
    _check_unique(path, names)
    return [sum(batch.num_rows for batch in batches)]


def _load_arrow(path: Path, number: int) -> Batches:
    assert number == 0, "a mapped file is one chunk"
    return Batches(_map_arrow(path)[0])


def _map_arrow(path: Path) -> tuple[list[Any], list[str]]:
    """The batches of an IPC file, which begins with ARROW1, or of a stream."""
    import pyarrow as pa

    source = pa.memory_map(str(path))
    if source.read(6) == b"ARROW1":
        reader = pa.ipc.open_file(source)
        return [reader.get_batch(number) for number in range(reader.num_record_batches)], reader.schema.names
    source.seek(0)
    stream = pa.ipc.open_stream(source)
    return list(stream), stream.schema.names
