"""Patterns of shards: ``data/{00000..00127}.tar``, as webdataset has them, beside those of all files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from os.path import exists, expanduser
from pathlib import Path
from typing import Literal

from mt_core import DataError
from mt_core.files import FileConfig, files_of

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]{1,12})\.\.([0-9]{1,12})")
_MOST = 1_000_000


def expand_braces(pattern: str) -> list[str]:
    """Return every path that a pattern with ``{00..12}`` or ``{a,b}`` stands for; the pattern alone where it has none.

    Numbers are as long as the first one of the range. Raises ``DataError`` for a range that falls, or stands for too many.
    """
    pieces = _BRACES.split(pattern)
    choices = [[piece] if number % 2 == 0 else _choices(piece, pattern) for number, piece in enumerate(pieces)]
    count = 1
    for each in choices:
        count *= len(each)
    if count > _MOST:
        raise DataError(f"{pattern} stands for {count:,} shards; {_MOST:,} are read at most. Correct its numbers")
    return ["".join(each) for each in product(*choices)]


def _choices(inner: str, pattern: str) -> list[str]:
    if (found := _RANGE.fullmatch(inner)) is None:
        return inner.split(",") if "," in inner else [f"{{{inner}}}"]
    first, last = int(found[1]), int(found[2])
    if last < first or last - first >= _MOST:
        raise DataError(
            f"{pattern}: {{{inner}}} does not rise, or by too much. Write the first and the last number, such as {{0..9}}"
        )
    return [str(number).zfill(len(found[1])) for number in range(first, last + 1)]


def shards_of(config: FileConfig, split: Literal["train", "eval"]) -> list[Path] | None:
    """The shards of a split, in the order of the pattern. Raises ``DataError`` for one that is not there."""
    named = config.path if split == "train" else config.eval_path
    if named is None or exists(expanduser(named)) or len(each := expand_braces(named)) == 1:
        return config.files(split, ".tar")
    if split == "train" and (config.sha256 or config.sha1):
        raise DataError(
            f"dataset.path={named} means {len(each)} files, and dataset.sha256 and sha1 are of one. Leave them out"
        )
    return list(dict.fromkeys(_files(each)))


def _files(patterns: list[str]) -> Iterator[Path]:
    for pattern in patterns:
        yield from files_of(pattern, ".tar")
