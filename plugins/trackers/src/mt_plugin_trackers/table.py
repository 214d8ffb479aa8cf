"""Figures as CSV, for spreadsheets."""

from __future__ import annotations

import csv
import io
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from pydantic import Field

from mt_core import MtConfig, MtError, StepRecord, TrackedRun, notice
from mt_core.files import open_regular, replace_file

from .service import id_file, keep_id, kept_id

NAME = "csv"
FIRST = "step"
"""First column of every table of this tracker."""
MOST_WAITING = 100_000
"""Lines that wait in memory for a disk with space; beyond that the oldest are given up."""
DAMAGED = ".damaged"
"""Ending of the file that holds a table's damaged lines."""


class CsvConfig(MtConfig):
    """Place of the table."""

    file: str = Field("metrics.csv", min_length=1, description="path; a relative one is inside the run's folder")


class CsvTracker:
    """One line a step, one column a figure. A new figure (the first evaluation) widens the table, which is then written anew.

    A table that is there is gone on with after ``first_step``. Lines that cannot be written, as on a full disk, wait for the next step.
    Raises ``MtError`` where the file is no table of this tracker.
    """

    def __init__(self, path: Path, *, first_step: int) -> None:
        self._path = path
        rows = [row for row in self._read() if int(row[FIRST]) <= first_step]
        self._columns: list[str] = []
        self._waiting: deque[dict[str, str]] = deque(maxlen=MOST_WAITING)
        self._failing = False
        self._write_all(rows, list(dict.fromkeys(name for row in rows for name in row)))

    def log(self, record: StepRecord) -> None:
        """Append one line. Raises ``MtError`` where a new figure comes, and the file is no table of this tracker any more."""
        self._waiting.append({name: _digits(value) for name, value in record.as_dict().items()})
        self._catch_up()

    def close(self, *, failed: bool) -> None:
        """Try once more what still waits; say how much of it is lost."""
        if self._waiting:
            self._catch_up()
        if self._waiting:
            notice(f"warning: {self._path} lacks the last {len(self._waiting):,} lines, which could not be written")

    def _catch_up(self) -> None:
        """Write what waits, with one warning where that fails, and one notice when it works again."""
        try:
            self._write_waiting()
        except OSError as error:
            if not self._failing:
                notice(
                    f"warning: {self._path} cannot be written: {error.strerror or error}; what is missing there is written as soon as it"
                    " can be"
                )
            self._failing = True
            return
        self._waiting.clear()
        if self._failing:
            notice(f"notice: {self._path} can be written again, and holds what was missing")
        self._failing = False

    def _write_waiting(self) -> None:
        known = set(self._columns)
        if new := list(dict.fromkeys(name for row in self._waiting for name in row if name not in known)):
            rows = self._read()  # and not kept in memory, which would grow with each step
            self._write_all([*rows, *self._waiting], [*self._columns, *new])
            return
        with open(self._path, "ab", buffering=0, opener=open_regular) as file:
            whole, rest = os.fstat(file.fileno()).st_size, _lines(self._waiting, self._columns)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(whole)  # half a line would spoil the next one
                raise

    def _read(self) -> list[dict[str, str]]:
        """Return the rows of the file, and set its damaged lines aside."""
        rows, damaged = _read(self._path)
        if damaged:
            with open(self._path.with_name(f"{self._path.name}{DAMAGED}"), "ab", opener=open_regular) as file:
                file.writelines(damaged)
        return rows

    def _write_all(self, rows: Iterable[Mapping[str, str]], columns: list[str]) -> None:
        """Write the table anew; ``columns`` are those of the table from then on, and stay as they were where that fails."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(self._path) as file:
            file.write(_lines([dict(zip(columns, columns, strict=True))] if columns else [], columns))
            file.write(_lines(rows, columns))
        self._columns = columns


def _lines(rows: Iterable[Mapping[str, str]], columns: Sequence[str]) -> bytes:
    text = io.StringIO()
    csv.DictWriter(text, columns, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _digits(value: float) -> str:
    """Return a number as Python writes it, also one of NumPy's, whose own words are ``np.float64(1.5)``."""
    return float.__repr__(value) if isinstance(value, float) else repr(value)


def _read(path: Path) -> tuple[list[dict[str, str]], list[bytes]]:
    """The rows of a table, and its damaged lines. A last one that a kill cut short is neither: it is written again."""
    if not path.exists() and not path.is_symlink():
        return [], []
    if path.is_symlink() or not path.is_file():
        raise MtError(f"tracker csv: {path} is not a regular file; remove it, or name another file")
    content = path.read_bytes()
    if not content:
        return [], []
    lines = [line + b"\n" for line in content.split(b"\n")[:-1]]
    header = _cells(lines[0]) if lines else None
    if header is None or header[0] != FIRST:
        raise MtError(
            f"tracker csv: {path} is no table of this tracker (it does not begin with the column {FIRST}), and stays as it"
            " is; move it away, or name another file with --trackers.csv.file"
        )
    rows, damaged = [], []
    for line in lines[1:]:
        cells = _cells(line)
        if cells is None or len(cells) != len(header) or not cells[0].isdecimal():
            damaged.append(line)
        else:
            rows.append({name: value for name, value in zip(header, cells, strict=True) if value})
    return rows, damaged


def _cells(line: bytes) -> list[str] | None:
    """Return the fields of a line; nothing where it is no line of a table."""
    try:
        (cells,) = csv.reader([line.decode().rstrip("\n")], strict=True)
    except (ValueError, csv.Error):
        return None
    return cells or None


def csv_files(config: CsvConfig) -> tuple[str, ...]:
    """Return where the table is, if it is in the run's folder, and where it is told that it is the run's."""
    place = PurePosixPath(config.file)
    inside = not place.is_absolute() and ".." not in place.parts and not config.file.startswith("~")
    return (*([place.as_posix()] if inside else []), id_file(NAME))


def build_csv(config: CsvConfig, *, run: TrackedRun) -> CsvTracker:
    """The table of a run. Raises ``MtError`` where it has no place, or one outside of the run's folder is somebody else's."""
    if run.output is None and not Path(config.file).is_absolute():
        raise MtError(
            f"tracker csv has no folder for {config.file} (output none); give --trackers.csv.file an absolute path"
        )
    path = (run.output or Path()) / config.file
    outside = run.output is None or not path.resolve().is_relative_to(run.output.resolve())
    own = kept_id(run.output, NAME) == str(path.resolve())
    if outside and not own and (path.exists() or path.is_symlink()):
        raise MtError(
            f"tracker csv: {path} exists, perhaps with another run's figures; remove it, or name another file"
        )
    tracker = CsvTracker(path, first_step=run.first_step)
    if outside:
        keep_id(run.output, NAME, str(path.resolve()))
    return tracker
