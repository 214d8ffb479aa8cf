"""Folders of weights as Hugging Face writes them, for families: read without executing anything, written whole or not at all.

Importing this imports no torch; every fault is a ``WeightsError`` that names the file and what to do.
"""

from mt_core.weights.files import Loaders, check_file, contained_file, open_pickle, open_safetensors, read_json
from mt_core.weights.folder import CONFIG, check_folder, is_folder, open_folder, without_tied_head
from mt_core.weights.rows import NewRows, RowInit
from mt_core.weights.writing import SHARD_BYTES, check_free, save_folder, stage_folder, write_json, write_tensors

__all__ = [
    "CONFIG",
    "SHARD_BYTES",
    "Loaders",
    "NewRows",
    "RowInit",
    "check_file",
    "check_folder",
    "check_free",
    "contained_file",
    "is_folder",
    "open_folder",
    "open_pickle",
    "open_safetensors",
    "read_json",
    "save_folder",
    "stage_folder",
    "without_tied_head",
    "write_json",
    "write_tensors",
]
