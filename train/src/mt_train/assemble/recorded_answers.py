"""Answers in ``rollouts.jsonl``, found by their iteration: the file is read once, and not again for each of them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import BinaryIO

from mt_core.errors import DataError, show_value
from mt_train.data.online import Record

_MARK = re.compile(rb'"iteration"\s*:\s*(\d+)\b')


class RecordedAnswers:
    """The answers of a run. Another program may have written the file, in any order; a run that goes on appends to it, or replaces it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._spans: dict[int, list[list[int]]] = {}
        """Iteration → begin and end of the lines that may be its own; neighbours are one pair."""
        self._file = (0, 0)
        self._end = 0

    def read(self, iteration: int) -> list[Record]:
        """Return the answers of an iteration, in their order; nothing where there are none. Half a line at the end is left out.

        Raises ``DataError`` for a file that cannot be read, and for a line of the iteration that is damaged.
        """
        if not self.path.exists():
            return []
        lines: list[bytes] = []
        try:
            with self.path.open("rb") as file:
                self._index(file)
                for begin, end in self._spans.get(iteration, ()):
                    file.seek(begin)
                    lines += file.read(end - begin).split(b"\n")[:-1]
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror or error}; give this user access") from error
        records = (self._parse(line.decode("utf-8", errors="surrogateescape"), iteration) for line in lines)
        return [record for record in records if record.get("iteration") == iteration]

    def _parse(self, line: str, iteration: int) -> Record:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            return record
        raise DataError(
            f"{self.path}: a line with answers of iteration {iteration} is damaged: {show_value(line)} is no JSON object; put back the"
            " file as its run wrote it"
        )

    def _index(self, file: BinaryIO) -> None:
        """Find the lines that are new; all of them in another file than before."""
        status = os.fstat(file.fileno())
        if self._file != (status.st_dev, status.st_ino) or status.st_size < self._end:
            self._spans, self._file, self._end = {}, (status.st_dev, status.st_ino), 0
        file.seek(self._end)
        for line in file:
            if not line.endswith(b"\n"):
                break
            begin, self._end = self._end, self._end + len(line)
            for iteration in set(map(int, _MARK.findall(line))):
                spans = self._spans.setdefault(iteration, [])
                if spans and spans[-1][1] == begin:
                    spans[-1][1] = self._end
                else:
                    spans.append([begin, self._end])
