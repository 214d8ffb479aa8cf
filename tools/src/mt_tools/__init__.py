"""The commands around training, and ``generate`` for Python. Importing it imports no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["generate"]

if TYPE_CHECKING:
    from mt_tools.api import generate


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'mt_tools' has no public name {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module("mt_tools.api"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
