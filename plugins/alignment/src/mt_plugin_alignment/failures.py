"""Failures of a user's or a plugin's code, in the words of a message: what was raised, and in which line of which file."""

from __future__ import annotations

import traceback
from pathlib import Path

from mt_core import first_line


def describe_failure(error: Exception, file: str | None = None) -> str:
    """Return the error with the line that raised it: the last one of ``file``, if the error passed through that, else the last of all."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [place for place in frames if place[0] == file]
    places = own or frames
    where = f"{_shorten(places[-1][0])}, line {places[-1][1]}; " if places else ""
    return f"{type(error).__name__}: {first_line(error)} ({where}--debug shows where from)"


def _shorten(file: str) -> str:
    """Return the path as seen from the working directory, if the file lies below that."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file
