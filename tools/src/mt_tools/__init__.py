"""The commands around training; for Python, text, figures and folders of weights that are written. Importing it imports no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "add_source_options": "mt_tools.generation.source",
    "chat_ids": "mt_tools.generation.prompts",
    "evaluate": "mt_tools.api",
    "expand_paths": "mt_tools.generation.source",
    "export_run": "mt_tools.api",
    "generate": "mt_tools.api",
    "open_source": "mt_tools.generation.source",
    "save_folder": "mt_tools.convert.writing",
    "source_faults": "mt_tools.generation.source",
    "stage_folder": "mt_tools.convert.writing",
    "template_of": "mt_tools.generation.prompts",
    "text_ids": "mt_tools.generation.prompts",
    "write_json": "mt_tools.convert.writing",
    "write_tensors": "mt_tools.convert.writing",
}

__all__ = [
    "add_source_options",
    "chat_ids",
    "evaluate",
    "expand_paths",
    "export_run",
    "generate",
    "open_source",
    "save_folder",
    "source_faults",
    "stage_folder",
    "template_of",
    "text_ids",
    "write_json",
    "write_tensors",
]

if TYPE_CHECKING:
    from mt_tools.api import evaluate, export_run, generate
    from mt_tools.convert.writing import save_folder, stage_folder, write_json, write_tensors
    from mt_tools.generation.prompts import chat_ids, template_of, text_ids
    from mt_tools.generation.source import add_source_options, expand_paths, open_source, source_faults


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mt_tools' has no public name {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
