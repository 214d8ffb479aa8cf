"""A file of texts that can be left half-way and continued: one JSON line a prompt, and what it was made with beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mt_core.errors import DataError, OutputError, UsageError
from mt_core.files.strict_json import parse_json
from mt_tools.generation.rows import WRITTEN, PromptRow, shorten
from mt_train.checkpoint.files import replace_text

Say = Callable[[str], None]


def settings_file(out: Path) -> Path:
    """Return where the settings of an output are kept."""
    return out.with_name(f"{out.name}.settings.json")


def _line(row: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False).encode("utf-8") + b"\n"
    except UnicodeEncodeError:  # half of a character in a key that is passed through; it has to read back as it was
        return json.dumps(row).encode("ascii") + b"\n"


class Output:
    """The output of one file of prompts. ``pending`` are the rows that it does not have yet, in order;
    ``converses`` says whether any row, of all of them, is a conversation.

    Opening checks what is there: other settings, other prompts or a file of somebody else are refused with
    ``UsageError``; a last line that was not written to its end is cut off with a notice.
    """

    def __init__(
        self, path: Path, rows: Sequence[PromptRow], settings: Mapping[str, Any], *, overwrite: bool, say: Say
    ) -> None:
        self.path = path
        self._settings = json.loads(json.dumps(settings))  # as it will be read back: tuples become lists
        if not path.parent.is_dir():
            raise OutputError(f"the folder {path.parent.absolute()} of --out does not exist; create it")
        if path.exists() and not path.is_file():
            raise OutputError(
                f"--out {path.absolute()} is no plain file, which an interrupted output is read from again; name another"
            )
        self._is_begun = path.exists() and not overwrite
        done = self._resume(rows, say) if self._is_begun else set()
        self.pending = [row for row in rows if row.id not in done]
        self.converses = any(not isinstance(row.prompt, str) for row in rows)

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write finished rows; they are in the file when this returns."""
        lines = b"".join(_line(row) for row in rows)
        try:
            self._begin()
            with self.path.open("ab") as file:
                file.write(lines)
        except OSError as error:
            raise OutputError(
                f"cannot write {self.path}: {error.strerror}; what is there stays, run the same command again to go on"
            ) from error

    def _begin(self) -> None:
        """Remove what is to be written over, now that there is something to write, and say how the new file is made."""
        if not self._is_begun:
            self.path.unlink(missing_ok=True)
            replace_text(settings_file(self.path), json.dumps(self._settings, indent=2, ensure_ascii=False) + "\n")
        self._is_begun = True

    def _resume(self, rows: Sequence[PromptRow], say: Say) -> set[str | int]:
        self._check_settings()
        content = self._read(say)
        known = {row.id: row.content for row in rows}
        done: set[str | int] = set()
        for line, raw in enumerate(content.splitlines(), 1):
            found = self._parse(raw, line)
            prompt = {key: value for key, value in found.items() if key not in WRITTEN}
            if found["id"] not in known:
                raise self._refusal(f"line {line} has id {found['id']!r}, which is not among the prompts")
            if prompt != known[found["id"]]:
                raise self._refusal(f"line {line}: the prompt with id {found['id']!r} was another one then")
            done.add(found["id"])
        if done:
            say(f"notice: {len(done)} of {len(rows)} prompts are in {self.path} already; going on with the rest")
        return done

    def _check_settings(self) -> None:
        file = settings_file(self.path)
        try:
            before = dict(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise self._refusal(
                f"it exists, and {file.name} beside it, which says how it was made, cannot be read"
            ) from error
        keys = sorted({*before, *self._settings})
        differing = [
            f"{key} was {shorten(before.get(key))} and is {shorten(self._settings.get(key))}"
            for key in keys
            if before.get(key) != self._settings.get(key)
        ]
        if differing:
            raise self._refusal(f"it was made with other settings: {'; '.join(differing)}")

    def _read(self, say: Say) -> bytes:
        """Read what is there, up to the end of its last whole line."""
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
            say(f"notice: the last line of {self.path} was not written to its end; it was cut off and is made again")
        return whole

    def _parse(self, raw: bytes, line: int) -> dict[str, Any]:
        try:
            found = parse_json(raw.decode("utf-8"))
        except ValueError as error:
            raise DataError(
                f"{self.path}:{line} is damaged ({error}); remove the line, or start over with --overwrite"
            ) from error
        if not isinstance(found, dict) or not {"id", *WRITTEN} <= found.keys():
            raise DataError(
                f"{self.path}:{line} is no line that mt-generate wrote; choose another --out, or --overwrite"
            )
        return found

    def _refusal(self, why: str) -> UsageError:
        return UsageError(
            f"{self.path} cannot be continued: {why}. Choose another --out, or start over with --overwrite"
        )
