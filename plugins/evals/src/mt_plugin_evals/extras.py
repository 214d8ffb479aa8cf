"""Libraries that an extra of the distribution brings: imported when they are used, and named where they are missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mt_core import UsageError


def package(module: str, *, extra: str, user: str) -> Any:
    """Import a module of an extra. Raises ``UsageError`` that says how ``user`` gets it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise UsageError(
            f"{user} needs the library {module.partition('.')[0]}, which cannot be imported here ({error});"
            f" install it with pip install 'mt-plugin-evals[{extra}]'"
        ) from error
