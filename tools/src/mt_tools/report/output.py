"""Place of the page: never over a file that is not one of these pages, and whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mt_core.errors import OutputError, UsageError
from mt_train.checkpoint.files import replace_text

GENERATOR = "mt-report"
MARK = f'<meta name="generator" content="{GENERATOR} '
"""Stands near the start of every page, and tells it from other files."""


def default_output(folders: Sequence[Path]) -> Path:
    """Return a path in the folder of a single run; in the current folder for several."""
    return folders[0] / "report.html" if len(folders) == 1 else Path("report.html")


def check_output(path: Path, *, overwrite: bool, option: str = "--output") -> None:
    """Raise ``UsageError`` when the page may not be written there; ``option`` is what the user gave it with."""
    if path.is_dir():
        raise UsageError(f"the output {path} is a folder; give a file, for instance {option} {path / 'report.html'}")
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"the output {path} must end in .html, so that it never replaces another kind of file")
    if not path.parent.is_dir():
        raise UsageError(
            f"the folder of the output, {path.parent}, does not exist; create it, or choose another {option}"
        )
    if not os.path.lexists(path):
        return
    if not path.is_file():
        raise UsageError(f"the output {path} is no plain file; choose another {option}")
    if not overwrite and not is_report(path):
        raise UsageError(
            f"{path} exists and is no page of {GENERATOR}; choose another {option}, or replace it with --overwrite"
        )


def is_report(path: Path) -> bool:
    """Return whether this command wrote the file."""
    try:
        with path.open("rb") as file:
            return MARK.encode() in file.read(1024)
    except OSError:
        return False


def write_page(path: Path, text: str) -> int:
    """Write the file under another name and rename it; its size in bytes. Raises ``OutputError`` when that fails."""
    content = text.encode("utf-8", errors="replace")  # JSON can smuggle in half a surrogate pair, UTF-8 has none
    try:
        replace_text(path, content.decode("utf-8"))
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; choose another place") from error
    return len(content)
