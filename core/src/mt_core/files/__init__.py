"""Rows in files, for datasets: which files, where each row lies in them, strict JSON. Importing this imports no torch.

Every fault is a ``DataError`` that names the file, the line where there is one, and what to do.
"""

from mt_core.files.arrays import array_elements
from mt_core.files.compressed import pieces_of, plain
from mt_core.files.config import FileConfig
from mt_core.files.json_rows import JsonRows
from mt_core.files.paths import files_of, suffix_of
from mt_core.files.spans import Cut, Piece, SpanIndex, lines, paragraphs, text_start, whole
from mt_core.files.strict_json import json_object, json_value

__all__ = [
    "Cut",
    "FileConfig",
    "JsonRows",
    "Piece",
    "SpanIndex",
    "array_elements",
    "files_of",
    "json_object",
    "json_value",
    "lines",
    "paragraphs",
    "pieces_of",
    "plain",
    "suffix_of",
    "text_start",
    "whole",
]
