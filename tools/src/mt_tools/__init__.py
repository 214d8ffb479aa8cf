"""The commands around training; ``generate`` and folders of weights that are written, for Python. Importing it imports no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "generate": "mt_tools.api",
    "save_folder": "mt_tools.convert.writing",
    "stage_folder": "mt_tools.convert.writing",
    "write_json": "mt_tools.convert.writing",
    "write_tensors": "mt_tools.convert.writing",
}

__all__ = ["generate", "save_folder", "stage_folder", "write_json", "write_tensors"]

if TYPE_CHECKING:
    from mt_tools.api import generate
    from mt_tools.convert.writing import save_folder, stage_folder, write_json, write_tensors


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mt_tools' has no public name {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
