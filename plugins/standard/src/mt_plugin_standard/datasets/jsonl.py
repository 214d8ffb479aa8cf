"""JSON lines (https://jsonlines.org), one object per line with blank lines skipped, or one array of objects. UTF-8."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from mt_core.files import FileConfig, JsonRows


class JsonlConfig(FileConfig):
    """Files of the rows."""

    path: str = Field(
        min_length=1,
        description="UTF-8 file of JSON objects, one per line or in one array; a folder (all *.jsonl below it, sorted, or all"
        " *.json where there are none); a pattern such as 'data/*.jsonl'; .gz and .zst too",
    )
    field: str | None = Field(
        None,
        min_length=1,
        description="where in the file the array is, e.g. data.train; needed when an object is around it",
    )


def jsonl_files(config: JsonlConfig, split: Literal["train", "eval"]) -> list[Path] | None:
    """The files of a split."""
    return config.files(split, ".jsonl", ".json")


def build_jsonl(config: JsonlConfig, *, split: Literal["train", "eval"]) -> JsonRows | None:
    """The rows of a split. Without ``eval_path`` the held-out part is cut from them by the core."""
    files = jsonl_files(config, split)
    return None if files is None else JsonRows(files, config.field)
