"""Folders of weights as Hugging Face writes them, for families: read without executing anything.

Importing this imports no torch; every fault is a ``WeightsError`` that names the file and what to do.
"""

from typing import Any

from mt_core.deprecation import current_name
from mt_core.weights.config_json import (
    FIXED,
    KEYS,
    Architecture,
    decoder_format,
    decoder_tensors,
    layer_types,
    read_config,
    read_windows,
    refuse_values,
    write_config,
    write_windows,
)
from mt_core.weights.experts import fused_experts, listed_experts
from mt_core.weights.files import (
    Loaders,
    RowInit,
    check_file,
    contained_file,
    load_rows,
    open_pickle,
    open_safetensors,
    read_json,
)
from mt_core.weights.folder import CONFIG, check_folder, is_folder, open_folder, without_tied_head
from mt_core.weights.rope_json import write_rope
from mt_core.weights.whole import (
    WHOLE_TYPES,
    WholeType,
    image_token_id,
    is_whole,
    open_text,
    text_config,
    whole_architecture,
    whole_name,
)

__all__ = [
    "CONFIG",
    "FIXED",
    "KEYS",
    "WHOLE_TYPES",
    "Architecture",
    "Loaders",
    "RowInit",
    "WholeType",
    "check_file",
    "check_folder",
    "contained_file",
    "decoder_format",
    "decoder_tensors",
    "fused_experts",
    "image_token_id",
    "is_folder",
    "is_whole",
    "layer_types",
    "listed_experts",
    "load_rows",
    "open_folder",
    "open_pickle",
    "open_safetensors",
    "open_text",
    "read_config",
    "read_json",
    "read_windows",
    "refuse_values",
    "text_config",
    "whole_architecture",
    "whole_name",
    "without_tied_head",
    "write_config",
    "write_rope",
    "write_windows",
]


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"module {__name__!r} has no public name {current_name(__name__, name)!r}; it has {', '.join(__all__)}"
    )
