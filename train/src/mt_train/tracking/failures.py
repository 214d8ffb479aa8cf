"""Failures of a user's or a plugin's code, in the words of a message: what was raised, and in which line of which file."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from mt_core.errors import describe_error

__all__ = ["describe_failure"]


def describe_failure(error: BaseException, source: object = None) -> str:
    """Return the error with the line that raised it: the last one of a file, if the error passed through that, else the last of all.

    ``source``: the path of that file, or an object whose class is written there.
    """
    file = source if isinstance(source, str) else getattr(sys.modules.get(type(source).__module__), "__file__", None)
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [place for place in frames if place[0] == file]
    places = own or frames
    where = f"{_shorten(places[-1][0])}, line {places[-1][1]}; " if places else ""
    return f"{describe_error(error)} ({where}--debug shows where from)"


def _shorten(file: str) -> str:
    """Return the path as seen from the working directory, if the file lies below that."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (OSError, ValueError):  # the working directory is gone; the file is elsewhere
        return file
