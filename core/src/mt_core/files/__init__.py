"""Rows in files, for datasets (which files, where each row lies in them, strict JSON), and files that a run writes.

Importing this imports no torch.

Every fault is a ``DataError`` that names the file, the line where there is one, and what to do.
"""

from mt_core.files.arrays import array_elements
from mt_core.files.compressed import decompressed_path, pieces_of
from mt_core.files.config import FileConfig
from mt_core.files.json_rows import JsonRows
from mt_core.files.native import native_faults, panic_error, panics
from mt_core.files.paths import cache_root, files_of, suffix_of
from mt_core.files.remote import RemoteFile, forget_remote, is_remote, storage
from mt_core.files.spans import (
    MOST_ROW_BYTES,
    Cut,
    Piece,
    SpanIndex,
    bounded_lines,
    lines,
    paragraphs,
    text_start,
    too_long,
    whole_file,
)
from mt_core.files.strict_json import json_object, json_value
from mt_core.files.writing import make_folder, open_regular, replace_file

__all__ = [
    "MOST_ROW_BYTES",
    "Cut",
    "FileConfig",
    "JsonRows",
    "Piece",
    "RemoteFile",
    "SpanIndex",
    "array_elements",
    "bounded_lines",
    "cache_root",
    "decompressed_path",
    "files_of",
    "forget_remote",
    "is_remote",
    "json_object",
    "json_value",
    "lines",
    "make_folder",
    "native_faults",
    "open_regular",
    "panic_error",
    "panics",
    "paragraphs",
    "pieces_of",
    "replace_file",
    "storage",
    "suffix_of",
    "text_start",
    "too_long",
    "whole_file",
]
